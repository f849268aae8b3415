"""Bytes from a request to a file: bounded memory, one writer, and an offset that never lies.

The offset of an upload *is* the size of its file, synced before it is told; there is no second record that could
disagree after a crash.  Writing and hashing run on a thread while the next bytes arrive.  Large files go around the
page cache: that costs a tenth of the processor time, pushes nothing else out of it, and leaves nothing to sync.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from api.errors import ApiError
from api.metrics import RECEIVED

if TYPE_CHECKING:
    from hashlib import _Hash

    from api.service import Service

BUFFER_BYTES: Final = 8 * 2**20
LEAST_BUFFER_BYTES: Final = 256 * 2**10
ALL_BUFFERS_BYTES: Final = 128 * 2**20
"""What the buffers of all uploads may hold together; when there are many, each has less."""
BLOCK_BYTES: Final = 4096
"""What the kernel wants offsets, sizes and addresses to be multiples of when the page cache is left out."""
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[int]:
    """The file's descriptor, held by one writer on this machine at a time; a killed writer lets go.

    Raises UPLOAD_LOCKED when another request writes, FileNotFoundError when there is no such file.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ApiError("UPLOAD_LOCKED", "another request is writing this upload") from error
        yield descriptor
    finally:
        os.close(descriptor)


def durable_size(path: Path) -> int:
    """How many bytes of the file are stored for good."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        os.fdatasync(descriptor)
        return size
    finally:
        os.close(descriptor)


class Target:
    """The file written to.  ``around``: leave the page cache out where the file system and the alignment allow it."""

    def __init__(self, descriptor: int, sync_every: int, *, around: bool) -> None:
        self._descriptor = descriptor
        self._direct = _open_direct(descriptor) if around else None
        self._sync_every = sync_every
        self._unsynced = 0

    def write(self, content: memoryview, offset: int) -> int:
        """Write some of the content, from its start; how many bytes."""
        if self._direct is not None and offset % BLOCK_BYTES == len(content) % BLOCK_BYTES == 0:
            try:
                return os.pwrite(self._direct, content, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.close()  # this file system takes the flag and not the writes
        written = os.pwrite(self._descriptor, content, offset)
        self._unsynced += written
        if self._unsynced >= self._sync_every:  # so that the sync at the end finds little to do
            self.sync()
        return written

    def sync(self) -> None:
        os.fdatasync(self._descriptor)
        self._unsynced = 0

    def close(self) -> None:
        direct, self._direct = self._direct, None
        if direct is not None:
            os.close(direct)


def _open_direct(descriptor: int) -> int | None:
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT) if _O_DIRECT else None
    except OSError:
        return None


def cut(descriptor: int, size: int) -> None:
    """Take back what lies behind ``size``, for good: after a crash it must not be counted again."""
    os.ftruncate(descriptor, size)
    os.fdatasync(descriptor)


class Intake:
    """Writes a stream behind ``offset``, up to ``limit`` bytes in the file."""

    _running = 0
    """How many streams this process is taking in."""

    def __init__(self, service: Service, descriptor: int, offset: int, limit: int, *, coming: int) -> None:
        """``coming``: how many bytes are expected; more may come, up to the limit."""
        self.offset = offset
        self.hash: _Hash | None = None
        self.chunk_hash: _Hash | None = None
        self._limit = limit
        self._disk = service.disk
        settings = service.settings
        self._target = Target(descriptor, settings.sync_every_bytes, around=coming >= settings.direct_bytes)

    async def receive(self, stream: AsyncIterator[bytes]) -> None:
        """Write everything the stream gives, once; on any exception what has arrived is kept.

        Raises:
            ApiError: TOO_LARGE for bytes beyond the limit, STORAGE_FULL.
        """
        Intake._running += 1
        size = _buffer_bytes(Intake._running)
        filling, resting = memoryview(mmap.mmap(-1, size)), memoryview(mmap.mmap(-1, size))
        room = size - self.offset % BLOCK_BYTES
        filled = 0
        writing: asyncio.Task[None] | None = None
        try:
            async for piece in stream:
                rest = memoryview(piece)
                while rest:
                    taken = rest[: room - filled]
                    filling[filled : filled + len(taken)] = taken
                    filled += len(taken)
                    rest = rest[len(taken) :]
                    if filled == room:
                        if writing is not None:
                            await asyncio.shield(writing)  # the thread goes on whoever stops waiting for it
                        writing = asyncio.create_task(self._store(filling[:filled]))
                        filling, resting = resting, filling
                        room, filled = size, 0
        finally:
            try:
                with anyio.CancelScope(shield=True):
                    if writing is not None:
                        await writing
                    await self._on_thread(self._finish, filling[:filled])
            finally:
                self._target.close()
                Intake._running -= 1

    async def _on_thread(self, act: Callable[[memoryview], None], content: memoryview) -> None:
        await anyio.to_thread.run_sync(act, content, limiter=self._disk)

    async def _store(self, content: memoryview) -> None:
        """Write and hash side by side."""
        self._refuse_beyond(content)
        with self._hash_in_step():
            await asyncio.gather(self._on_thread(self._write, content), self._on_thread(self._update, content))

    def _refuse_beyond(self, content: memoryview) -> None:
        if self.offset + len(content) > self._limit:
            raise ApiError(
                "TOO_LARGE", f"the body goes on beyond byte {self._limit}", limit=self._limit,
                actual=self.offset + len(content),
            )  # fmt: skip

    def _write(self, content: memoryview) -> None:
        with storage_errors():
            while content:
                written = self._target.write(content, self.offset)
                self.offset += written
                content = content[written:]
                RECEIVED.inc(written)

    def _update(self, content: memoryview) -> None:
        for running in (self.hash, self.chunk_hash):
            if running is not None:
                running.update(content)

    def _finish(self, content: memoryview) -> None:
        self._refuse_beyond(content)
        with self._hash_in_step():
            self._write(content)
            self._update(content)
            with storage_errors():
                self._target.sync()

    @contextlib.contextmanager
    def _hash_in_step(self) -> Iterator[None]:
        """After a failure the hash may know more than the file holds: forget it, the file is read again at the end."""
        try:
            yield
        except BaseException:
            self.hash = None
            raise


def _buffer_bytes(streams: int) -> int:
    """The size of one of a stream's two buffers when so many streams come in; a multiple of BLOCK_BYTES."""
    fair = ALL_BUFFERS_BYTES // (2 * streams) // BLOCK_BYTES * BLOCK_BYTES
    return max(LEAST_BUFFER_BYTES, min(BUFFER_BYTES, fair))


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """A full disk is STORAGE_FULL, not a bug."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ApiError("STORAGE_FULL", "the disk of uploads is full") from error
        raise


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
