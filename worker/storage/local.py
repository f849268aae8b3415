"""A store in a local folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

_FICLONE: Final = 0x40049409
_COPY_BYTES: Final = 8 * 2**20


class LocalStorage:
    """Objects as files below ``root``, written aside and renamed, synced before they show."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._aside = root / "aside"

    def put(self, source: Path, name: str) -> None:
        target = self._path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        sync_file(source)
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            with self._temporary(target) as written:
                copy_file(source, written, lambda _: None)
                sync_file(written)
        sync_folder(target.parent)

    def put_set(self, folder: Path, name: str) -> None:
        target = self._path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            sync_file(path)
        sync_folder(folder)
        try:
            folder.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._move_set(folder, target)
        sync_folder(target.parent)

    def fetch(self, name: str, destination: Path, on_bytes: Callable[[int], None]) -> None:
        copy_file(self._path(name), destination, on_bytes)

    def open(self, name: str) -> BinaryIO:
        return self._path(name).open("rb")

    def delete(self, name: str) -> None:
        path = self._path(name)
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()

    def sets(self, prefix: str) -> Iterator[tuple[str, float]]:
        for path in self._path(prefix).glob("*/*"):
            with contextlib.suppress(FileNotFoundError):
                yield str(path.relative_to(self.root)), time.time() - path.stat().st_mtime

    def _path(self, name: str) -> Path:
        parts = Path(name).parts
        if not parts or ".." in parts or Path(name).is_absolute():
            raise ValueError(f"{name!r} is no name of an object")
        return self.root / name

    def _move_set(self, folder: Path, target: Path) -> None:
        """The folder lies on another device: copy aside, then rename."""
        self._aside.mkdir(parents=True, exist_ok=True)
        copied = Path(tempfile.mkdtemp(dir=self._aside))
        try:
            for path in folder.iterdir():
                copy_file(path, copied / path.name, lambda _: None)
                sync_file(copied / path.name)
            sync_folder(copied)
            copied.rename(target)
        except BaseException:
            shutil.rmtree(copied, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def _temporary(self, target: Path) -> Iterator[Path]:
        self._aside.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self._aside)
        os.close(number)
        path = Path(name)
        try:
            yield path
            path.rename(target)
        finally:
            path.unlink(missing_ok=True)


def copy_file(source: Path, destination: Path, on_bytes: Callable[[int], None]) -> None:
    """Copy into a new inode, sharing blocks where the file system can; nothing is synced."""
    with source.open("rb") as reader, destination.open("wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        if not _clone(reader, writer):
            done = 0
            while done < size:
                copied = os.sendfile(writer.fileno(), reader.fileno(), done, min(_COPY_BYTES, size - done))
                if copied == 0:
                    raise OSError(errno.EIO, f"the file ended after {done} of {size} bytes", str(source))
                done += copied
                on_bytes(done)
        on_bytes(size)


def _clone(reader: BinaryIO, writer: BinaryIO) -> bool:
    try:
        fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
    except OSError:
        return False
    return True


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    sync_file(path)
