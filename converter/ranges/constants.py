"""What constants hold, read in pieces: a fast survey of many in parallel, and the whole range of one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from converter.numerics.magnitudes import MagnitudeSums
from converter.numerics.range_sums import RangeSums
from converter.source.weights import PIECE_BYTES, Bytes, ReadBytes, WeightFiles
from converter.types import Magnitudes, ValueRange

READERS = 2


def measure_constant(tensor: ir.TensorProtocol) -> ValueRange:
    """The range of an FP32 constant."""
    sums = RangeSums()
    buffer = np.empty(PIECE_BYTES, np.uint8)
    with WeightFiles() as files:
        for piece in _pieces(0, tensor, files):
            sums.add(piece.load(buffer))
    return sums.result(tuple(int(d) for d in tensor.shape.numpy()))


def survey_constants(tensors: Sequence[ir.TensorProtocol]) -> list[Magnitudes]:
    """The magnitudes of FP32 constants, several read at once."""
    with WeightFiles() as files:
        survey = _Survey(tensors, files)
        large = sum(int(t.nbytes) for t in tensors) > READERS * PIECE_BYTES
        if large:
            with ThreadPoolExecutor(READERS, "narrowcast-survey") as pool:
                for done in [pool.submit(survey.work) for _ in range(READERS)]:
                    done.result()
        else:
            survey.work()
    return [sums.result() for sums in survey.sums]


@dataclass(frozen=True, slots=True)
class _Piece:
    tensor: int
    read: ReadBytes
    start: int
    length: int

    def load(self, buffer: Bytes) -> NDArray[np.float32]:
        """The piece's numbers; valid until the buffer is used again."""
        part = buffer[: self.length]
        self.read(self.start, part)
        return part.view(np.float32)


def _pieces(number: int, tensor: ir.TensorProtocol, files: WeightFiles) -> Iterator[_Piece]:
    read, total = files.reader(tensor), int(tensor.nbytes)
    for start in range(0, total, PIECE_BYTES):
        yield _Piece(number, read, start, min(PIECE_BYTES, total - start))


class _Survey:
    """Pieces being surveyed by several threads; what they saw does not depend on who took what but for the last
    bits of the mean square, which bounds allow for.
    """

    def __init__(self, tensors: Sequence[ir.TensorProtocol], files: WeightFiles) -> None:
        self.sums = [MagnitudeSums() for _ in tensors]
        self._pieces = (p for number, tensor in enumerate(tensors) for p in _pieces(number, tensor, files))
        self._lock = threading.Lock()

    def work(self) -> None:
        buffer = np.empty(PIECE_BYTES, np.uint8)
        while True:
            with self._lock:
                piece = next(self._pieces, None)
            if piece is None:
                return
            seen = MagnitudeSums()
            seen.add(piece.load(buffer))
            with self._lock:
                self.sums[piece.tensor].merge(seen)
