"""Bytes from a request to a file: bounded memory, one writer, and an offset that never lies.

The offset of an upload *is* the size of its file, synced before it is told; there is no second record that could
disagree after a crash.  Writing and hashing run on a thread while the next bytes arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio import CapacityLimiter

from api.errors import ApiError
from api.metrics import RECEIVED

if TYPE_CHECKING:
    from hashlib import _Hash

BATCH_BYTES: Final = 2 * 2**20
_SYNC_FILE_RANGE: Final = getattr(ctypes.CDLL(None), "sync_file_range", None)
_WRITE: Final = 2


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


class Intake:
    """Writes a stream behind ``offset``, up to ``limit`` bytes in the file."""

    def __init__(self, descriptor: int, offset: int, limit: int, sync_every: int, disk: CapacityLimiter) -> None:
        self.offset = offset
        self.hash: _Hash | None = None
        self.chunk_hash: _Hash | None = None
        self._descriptor = descriptor
        self._limit = limit
        self._sync_every = sync_every
        self._synced = offset
        self._disk = disk
        self._syncing: asyncio.Task[None] | None = None

    async def receive(self, stream: AsyncIterator[bytes]) -> None:
        """Write everything the stream gives; on any exception what has arrived is kept.

        Raises:
            ApiError: TOO_LARGE for bytes beyond the limit, STORAGE_FULL.
        """
        writing: asyncio.Task[None] | None = None
        waiting: list[bytes] = []
        size = 0
        try:
            async for piece in stream:
                if not piece:
                    continue
                waiting.append(piece)
                size += len(piece)
                if size >= BATCH_BYTES:
                    writing = await self._next(writing, waiting)
                    waiting, size = [], 0
        finally:
            with anyio.CancelScope(shield=True):
                writing = await self._next(writing, waiting)
                await writing
                await self._sync(wait=True)

    async def _next(self, before: asyncio.Task[None] | None, pieces: list[bytes]) -> asyncio.Task[None]:
        if before is not None:
            await before
            await self._sync(wait=False)
        return asyncio.create_task(anyio.to_thread.run_sync(self._write, pieces, limiter=self._disk))

    def _write(self, pieces: list[bytes]) -> None:
        """One buffer, one write, one update: every call less is a wait less for the interpreter's lock."""
        content = b"".join(pieces)
        if self.offset + len(content) > self._limit:
            raise ApiError(
                "TOO_LARGE", f"the body goes on beyond byte {self._limit}", limit=self._limit,
                actual=self.offset + len(content),
            )  # fmt: skip
        with storage_errors():
            self._write_all(memoryview(content))
        for running in (self.hash, self.chunk_hash):
            if running is not None:
                running.update(content)
        RECEIVED.inc(len(content))

    def _write_all(self, content: memoryview) -> None:
        while content:
            written = os.pwrite(self._descriptor, content, self.offset)
            self.offset += written
            content = content[written:]

    async def _sync(self, *, wait: bool) -> None:
        """Start writing out what has come, every now and then, beside the writing; at the end wait until it is out."""
        if self._syncing is not None and (wait or self._syncing.done()):
            await self._syncing
            self._syncing = None
        if wait:
            with storage_errors():
                await anyio.to_thread.run_sync(os.fdatasync, self._descriptor, limiter=self._disk)
        elif self._syncing is None and self.offset - self._synced >= self._sync_every:
            start, self._synced = self._synced, self.offset
            span = (self._descriptor, start, self.offset - start)
            self._syncing = asyncio.create_task(anyio.to_thread.run_sync(start_writeback, *span, limiter=self._disk))


def start_writeback(descriptor: int, start: int, size: int) -> None:
    """Have the kernel begin to write a part of the file out, so that the sync at the end finds little to do."""
    if _SYNC_FILE_RANGE is not None:
        _SYNC_FILE_RANGE(descriptor, ctypes.c_int64(start), ctypes.c_int64(size), _WRITE)


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
