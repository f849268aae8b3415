"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)


class Draft(AbstractContextManager["Draft"]):
    """A file being written in a folder: without a name where the system can do that, so that a process that is
    killed leaves nothing behind; leaving the context throws away what was not published.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path: Path | None = None
        self.descriptor = self._create()

    def _create(self) -> int:
        if hasattr(os, "O_TMPFILE") and Path("/proc/self/fd").is_dir():
            try:
                return os.open(self._folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
        descriptor, path = tempfile.mkstemp(prefix=".narrowcast-", dir=self._folder)
        self._path = Path(path)
        mask = os.umask(0)
        os.umask(mask)
        self._path.chmod(0o666 & ~mask)
        return descriptor

    def write(self, content: bytes) -> None:
        """Append bytes."""
        left = memoryview(content)
        while left:
            left = left[os.write(self.descriptor, left) :]

    def publish(self, target: Path, durable: bool) -> None:
        """Give the file its name, replacing a file that has it; ``durable``: its bytes reach the disk first.

        A device or a pipe of that name is written to, never replaced.
        """
        if target.exists() and not target.is_file() and not target.is_dir():
            self._copy_into(target)
            return
        if durable:
            os.fsync(self.descriptor)
        path = self._path or self._link(target.with_name(f".{target.name}.{os.getpid()}.tmp-narrowcast"))
        try:
            path.replace(target)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        self._path = None

    def _copy_into(self, target: Path) -> None:
        with target.open("wb", buffering=0) as place, os.fdopen(os.dup(self.descriptor), "rb") as content:
            content.seek(0)
            shutil.copyfileobj(content, place)

    def _link(self, path: Path) -> Path:
        path.unlink(missing_ok=True)
        root = os.open("/", os.O_RDONLY)
        try:  # only with a folder's descriptor does Python ask the system to follow the link in /proc
            os.link(f"/proc/self/fd/{self.descriptor}", path, src_dir_fd=root)
        finally:
            os.close(root)
        return path

    def __exit__(self, *failure: object) -> None:
        os.close(self.descriptor)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
