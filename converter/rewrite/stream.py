"""Writing weights as a stream: read a piece, limit it where planned, convert, write; memory stays a constant.

Pieces are independent: each has its place in the source and in the target before anything is read, so that
several threads take them as they come.  The result does not depend on who took what.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from converter.formats import FP32, FloatFormat
from converter.rewrite.narrow_initializers import NarrowTensor, to_narrow
from converter.source.save import WrittenWeights
from converter.source.weights import PIECE_BYTES, Bytes, ReadBytes, WeightFiles, external_place

ALIGNMENT: Final = 4096
"""Offsets of tensors in the data file: whole pages, so that readers can map them."""

WRITERS: Final = 2

Caster = Callable[[int], None]
"""Converts the first elements of a fixed FP32 buffer into a fixed narrow one."""
MakeCaster = Callable[[FloatFormat, NDArray[np.float32], NDArray[np.uint16]], Caster]


def numpy_caster(fmt: FloatFormat, source: NDArray[np.float32], target: NDArray[np.uint16]) -> Caster:
    """The conversion in plain NumPy: what every other caster has to equal bit for bit."""
    narrow = target.view(fmt.dtype)

    def cast(count: int) -> None:
        narrow[:count] = to_narrow(source[:count], fmt, None)

    return cast


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor's place in the data file."""

    tensor: ir.TensorProtocol
    offset: int

    @property
    def end(self) -> int:
        return self.offset + int(self.tensor.nbytes)


def lay_out(tensors: Sequence[ir.TensorProtocol]) -> tuple[list[int], list[Slot]]:
    """Offsets by tensor, and the slots to write: tensors with the same bytes in the same file share one."""
    offsets: list[int] = []
    slots: dict[object, Slot] = {}
    end = 0
    for tensor in tensors:
        key = _identity(tensor)
        slot = slots.get(key)
        if slot is None:
            slot = slots[key] = Slot(tensor, end + -end % ALIGNMENT)
            end = slot.end
        offsets.append(slot.offset)
    return offsets, list(slots.values())


def _identity(tensor: ir.TensorProtocol) -> object:
    """What makes two tensors to be written the same bytes."""
    if isinstance(tensor, NarrowTensor):
        return _identity(tensor.source), tensor.fmt.name, tensor.bound
    return external_place(tensor) or id(tensor)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some bytes of one tensor: where they come from, where they go, and what happens on the way."""

    number: int
    read: ReadBytes
    start: int
    length: int
    """Start and length in bytes of the source."""
    target: int
    narrow: FloatFormat | None = None
    bound: float | None = None


class WeightStream:
    """Writes tensors into a data file; see the module's head."""

    def __init__(
        self, make_caster: MakeCaster = numpy_caster, progress: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        self._make_caster = make_caster
        self._progress = progress

    def __call__(self, tensors: Sequence[ir.TensorProtocol], descriptor: int) -> WrittenWeights:
        """Write every tensor.

        Raises:
            OSError: the disk is full, or a file cannot be read.
        """
        offsets, slots = lay_out(tensors)
        size = slots[-1].end if slots else 0
        os.ftruncate(descriptor, size)
        with WeightFiles() as files:
            job = _Job(_pieces(slots, files), descriptor, self._make_caster, lambda done: self._progress(done, size))
            job.run()
        return WrittenWeights(tuple(offsets), size, job.digest())


def _pieces(slots: Sequence[Slot], files: WeightFiles) -> Iterator[_Piece]:
    number = 0
    for slot in slots:
        tensor = slot.tensor
        given = tensor if isinstance(tensor, NarrowTensor) else None
        source = tensor if given is None else given.source
        narrow, bound = (None, None) if given is None else (given.fmt, given.bound)
        read, total = files.reader(source), int(source.nbytes)
        for start in range(0, total, PIECE_BYTES):
            target = slot.offset + (start if narrow is None else start // FP32.itemsize * narrow.itemsize)
            yield _Piece(number, read, start, min(PIECE_BYTES, total - start), target, narrow, bound)
            number += 1


class _Job:
    """Pieces being written by several threads."""

    def __init__(
        self,
        pieces: Iterator[_Piece],
        descriptor: int,
        make_caster: MakeCaster,
        progress: Callable[[int], None],
    ) -> None:
        self._pieces = pieces
        self._descriptor = descriptor
        self._make_caster = make_caster
        self._progress = progress
        self._lock = threading.Lock()
        self._failed = False
        self._digests: dict[int, bytes] = {}

    def run(self) -> None:
        """Write all pieces; the first failure stops every thread and is raised."""
        with ThreadPoolExecutor(WRITERS, "narrowcast-weights") as pool:
            for done in [pool.submit(self._work) for _ in range(WRITERS)]:
                done.result()

    def digest(self) -> str:
        """A name made from the content: the hash of the hashes of all pieces in their order."""
        return hashlib.sha256(b"".join(self._digests[k] for k in sorted(self._digests))).hexdigest()

    def _work(self) -> None:
        copier = _Copier(self._make_caster)
        try:
            while (piece := self._next()) is not None:
                content = copier.load(piece)
                self._digests[piece.number] = hashlib.sha256(content.data).digest()
                self._write(content, piece.target)
        except BaseException:
            self._failed = True
            raise

    def _next(self) -> _Piece | None:
        with self._lock:
            piece = None if self._failed else next(self._pieces, None)
            if piece is not None and piece.number % 64 == 0:
                self._progress(piece.target)
            return piece

    def _write(self, content: Bytes, target: int) -> None:
        if not content.any():
            return  # the file reads as zeros there already: a hole stays a hole
        while content.nbytes:
            written = os.pwrite(self._descriptor, content.data, target)
            content, target = content[written:], target + written


class _Copier:
    """One thread's buffers: a piece as it was read, and its narrow copy."""

    def __init__(self, make_caster: MakeCaster) -> None:
        self._source = np.empty(PIECE_BYTES, np.uint8)
        self._wide: NDArray[np.float32] = self._source.view(np.float32)
        self._narrow = np.empty(self._wide.size, np.uint16)
        self._make_caster = make_caster
        self._casters: dict[str, Caster] = {}

    def load(self, piece: _Piece) -> NDArray[Any]:
        """The bytes of a piece as they are to be written; valid until the next call."""
        source = self._source[: piece.length]
        piece.read(piece.start, source)
        if piece.narrow is None:
            return source
        count = piece.length // FP32.itemsize
        if piece.bound is not None:
            values = self._wide[:count]
            np.clip(values, np.float32(-piece.bound), np.float32(piece.bound), out=values)
        self._caster(piece.narrow)(count)
        return self._narrow.view(np.uint8)[: count * piece.narrow.itemsize]

    def _caster(self, fmt: FloatFormat) -> Caster:
        caster = self._casters.get(fmt.name)
        if caster is None:
            caster = self._casters[fmt.name] = self._make_caster(fmt, self._wide, self._narrow)
        return caster
