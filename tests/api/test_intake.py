"""Writing an upload: around the page cache or through it, the bytes, the offset and the digest are right."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import random
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api import intake
from api.errors import ApiError
from tests.api.conftest import Desk, MakeDesk
from tests.service_kit import can_mount, small_disk

CONTENT = random.Random(3).randbytes(9 * 2**20 + 12_345)


async def in_pieces(content: bytes, largest: int) -> AsyncIterator[bytes]:
    dice = random.Random(len(content))
    done = 0
    while done < len(content):
        size = dice.randrange(1, largest)
        yield content[done : done + size]
        done += size
    yield b""


def take(desk: Desk, path: Path, offset: int, content: bytes, *, largest: int = 300_000) -> intake.Intake:
    with intake.exclusive(path) as descriptor:
        made = intake.Intake(desk.service, descriptor, offset, 2**30, coming=len(content))
        made.hash = hashlib.sha256(path.read_bytes()[:offset])
        try:
            asyncio.run(made.receive(in_pieces(content, largest)))
        finally:
            assert made._target._direct is None, "closed"
        return made


@pytest.fixture(params=["around the page cache", "through the page cache"])
def writing_desk(request: pytest.FixtureRequest, make_desk: MakeDesk) -> Desk:
    return make_desk(direct_bytes=0 if request.param.startswith("around") else 2**40, sync_every_bytes=2**20)


@pytest.mark.parametrize("offset", [0, 1, 4095, 4096, 5 * 2**20, 5 * 2**20 + 77, len(CONTENT) - 1, len(CONTENT)])
def test_bytes_offset_and_digest_agree(writing_desk: Desk, tmp_path: Path, offset: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT[:offset])
    made = take(writing_desk, path, offset, CONTENT[offset:])
    assert made.offset == len(CONTENT)
    assert path.read_bytes() == CONTENT
    assert made.hash is not None
    assert made.hash.hexdigest() == hashlib.sha256(CONTENT).hexdigest()


def test_a_break_keeps_what_came(writing_desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    async def breaking() -> AsyncIterator[bytes]:
        yield CONTENT[: 5 * 2**20 + 3]
        raise ConnectionResetError

    with intake.exclusive(path) as descriptor:
        made = intake.Intake(writing_desk.service, descriptor, 0, 2**30, coming=len(CONTENT))
        made.hash = hashlib.sha256()
        with pytest.raises(ConnectionResetError):
            asyncio.run(made.receive(breaking()))
    assert path.read_bytes() == CONTENT[: made.offset]
    assert made.offset == 5 * 2**20 + 3
    assert made.hash.digest() == hashlib.sha256(CONTENT[: made.offset]).digest()
    assert take(writing_desk, path, made.offset, CONTENT[made.offset :]).offset == len(CONTENT)
    assert path.read_bytes() == CONTENT


def test_a_file_system_that_takes_the_flag_and_not_the_writes(
    make_desk: MakeDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = make_desk(direct_bytes=0)
    path = tmp_path / "file"
    path.touch()
    real, refused = os.pwrite, []

    def refusing(descriptor: int, content: memoryview, offset: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path and not refused:
            refused.append(offset)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", refusing)
    take(desk, path, 0, CONTENT)
    assert refused == [0]
    assert path.read_bytes() == CONTENT


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
@pytest.mark.parametrize("direct_bytes", [0, 2**40])
def test_after_a_full_disk_the_digest_is_not_taken_from_a_hash_that_ran_ahead(
    make_desk: MakeDesk, direct_bytes: int
) -> None:
    desk = make_desk(direct_bytes=direct_bytes)
    with small_disk("6m") as full:
        path = full / "file"
        path.touch()
        with intake.exclusive(path) as descriptor:
            made = intake.Intake(desk.service, descriptor, 0, 2**30, coming=len(CONTENT))
            made.hash = hashlib.sha256()
            with pytest.raises(ApiError, match="full"):
                asyncio.run(made.receive(in_pieces(CONTENT, 300_000)))
        assert made.hash is None
        assert path.read_bytes() == CONTENT[: made.offset]
        assert made.offset >= 4 * 2**20


def test_a_cancelled_request_lets_the_write_finish(make_desk: MakeDesk, tmp_path: Path, monkeypatch: Any) -> None:
    """Its thread writes to a descriptor, and a descriptor that was closed meanwhile may be another file's."""
    desk = make_desk()
    path = tmp_path / "file"
    path.touch()
    real, writing, go_on = os.pwrite, threading.Event(), threading.Event()

    def slow(descriptor: int, content: memoryview, offset: int) -> int:
        writing.set()
        assert go_on.wait(20)
        return real(descriptor, content, offset)

    monkeypatch.setattr(os, "pwrite", slow)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(2**20)
            await asyncio.sleep(0)

    async def cancelled(made: intake.Intake) -> None:
        task = asyncio.create_task(made.receive(endless()))
        assert await asyncio.to_thread(writing.wait, 20)
        await asyncio.sleep(0.2)  # it fills the other buffer and waits for the first
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with intake.exclusive(path) as descriptor:
        made = intake.Intake(desk.service, descriptor, 0, 2**30, coming=0)
        asyncio.run(cancelled(made))
    assert made.offset == path.stat().st_size >= 2 * intake.BUFFER_BYTES
    assert intake.Intake._running == 0


@pytest.mark.parametrize("streams", [1, 8, 9, 50, 1000, 10_000])
def test_many_streams_share_the_memory_of_buffers(streams: int) -> None:
    size = intake._buffer_bytes(streams)
    assert size % intake.BLOCK_BYTES == 0
    assert intake.LEAST_BUFFER_BYTES <= size <= intake.BUFFER_BYTES
    assert size == intake.LEAST_BUFFER_BYTES or 2 * size * streams <= intake.ALL_BUFFERS_BYTES


def test_a_chunk_that_is_taken_back_is_taken_back_for_good(tmp_path: Path, monkeypatch: Any) -> None:
    path, synced = tmp_path / "file", []
    path.write_bytes(b"good bad")
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (real(fd), synced.append(os.fstat(fd).st_size))[0])
    with intake.exclusive(path) as descriptor:
        intake.cut(descriptor, 4)
    assert (path.read_bytes(), synced) == (b"good", [4])


@pytest.mark.parametrize("where", ["/dev/shm", "."])
def test_every_file_system_is_written_right(make_desk: MakeDesk, where: str, tmp_path: Path) -> None:
    """Memory file systems take the flag in new kernels and refuse it in old ones."""
    folder = Path(tempfile.mkdtemp(dir=where if where != "." else tmp_path))
    try:
        path = folder / "file"
        path.write_bytes(CONTENT[:777])
        take(make_desk(direct_bytes=0), path, 777, CONTENT[777:])
        assert path.read_bytes() == CONTENT
    finally:
        shutil.rmtree(folder)


def test_short_writes_are_gone_on_with(make_desk: MakeDesk, tmp_path: Path, monkeypatch: Any) -> None:
    """A kernel may take less than it was given, and leave the rest unaligned."""
    desk = make_desk(direct_bytes=0)
    path = tmp_path / "file"
    path.touch()
    real, dice = os.pwrite, random.Random(5)

    def short(descriptor: int, content: memoryview, offset: int) -> int:
        some = len(content) // dice.choice((1, 2, 3, 4096)) // 512 * 512
        return real(descriptor, content[: some or len(content)], offset)

    monkeypatch.setattr(os, "pwrite", short)
    made = take(desk, path, 0, CONTENT)
    assert path.read_bytes() == CONTENT
    assert made.hash is not None
    assert made.hash.digest() == hashlib.sha256(CONTENT).digest()
