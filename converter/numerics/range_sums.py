"""What a float value holds, gathered in one pass over cache-sized pieces.

Everything but minimum and maximum comes from the bits: shifting the sign out leaves integers that sort like
magnitudes, whose upper eight bits are the biased exponent.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from converter.formats import FP32
from converter.numerics.chunks import CHUNK, chunks
from converter.types import EXPONENT_BINS, ValueRange

UNSEEN: Final = (0,)
"""Shape in the range of a value that was never seen."""

_NONFINITE_BIN: Final = EXPONENT_BINS - 1
_UNSIGNED_EXPONENT_SHIFT: Final = FP32.mantissa_bits + 1
_PREFIX: Final = 64
"""Elements looked at first to see that a value is no integer; most pieces end there."""


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.magnitudes = np.empty(CHUNK, np.uint32)
        self.exponents = np.empty(CHUNK, np.uint32)
        self.bins = np.empty(CHUNK, np.intp)
        self.mask = np.empty(CHUNK, np.bool_)


_SCRATCH = _Scratch()


class RangeSums:
    """Accumulates the ``ValueRange`` of one value over any number of ``add`` calls.

    Other float types than float32 are converted piece by piece.  FP64 elements are recorded at FP32's precision
    and held inside its range: a finite one never counts as infinity, a non-zero one never as zero.
    """

    __slots__ = (
        "_absmin",
        "_count",
        "_exponents",
        "_integral",
        "_maximum",
        "_minimum",
        "_nan",
        "_neginf",
        "_posinf",
        "_shape",
        "_zeros",
    )

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = UNSEEN
        self._count = self._zeros = self._nan = self._posinf = self._neginf = 0
        self._minimum, self._maximum, self._absmin = math.inf, -math.inf, math.inf
        self._integral = True
        self._exponents = np.zeros(EXPONENT_BINS, np.int64)

    def add(self, x: NDArray[Any]) -> None:
        """Add an array of any shape and float type."""
        self._shape = larger_shape(self._shape, x.shape)
        self._count += x.size
        with np.errstate(all="ignore"):
            for (piece,) in chunks(x):
                self._integral = self._integral and _is_integral(piece)
                self._add_chunk(piece if piece.dtype == np.float32 else _inside_float32(piece))

    def result(self, shape: tuple[int, ...] | None = None) -> ValueRange:
        """Return the range of everything added so far; ``shape``: of the whole, when it was added in pieces."""
        nothing = self._minimum > self._maximum
        minimum, maximum = (0.0, 0.0) if nothing else (self._minimum, self._maximum)
        exponents = self._exponents.tolist()
        exponents[0] -= self._zeros
        return ValueRange(
            shape=self._shape if shape is None else shape,
            count=self._count,
            zeros=self._zeros,
            minimum=minimum,
            maximum=maximum,
            absmax=max(abs(minimum), abs(maximum)),
            absmin_nonzero=0.0 if math.isinf(self._absmin) else self._absmin,
            nan_count=self._nan,
            posinf_count=self._posinf,
            neginf_count=self._neginf,
            integral=self._integral,
            exponents=tuple(exponents),
        )

    def _add_chunk(self, x: NDArray[np.float32]) -> None:
        magnitudes = np.left_shift(x.view(np.uint32), 1, out=_SCRATCH.magnitudes[: x.size])
        bins = _SCRATCH.bins[: x.size]
        exponents = np.right_shift(magnitudes, _UNSIGNED_EXPONENT_SHIFT, out=_SCRATCH.exponents[: x.size])
        np.copyto(bins, exponents)
        counts = np.bincount(bins, minlength=EXPONENT_BINS)
        self._exponents += counts
        smallest = int(np.minimum.reduce(magnitudes))
        if smallest == 0:
            self._zeros += int(np.count_nonzero(np.equal(magnitudes, 0, out=_SCRATCH.mask[: x.size])))
            # Zero wraps round to the largest integer, so that the smallest of the others comes out.
            smallest = int(np.minimum.reduce(np.subtract(magnitudes, 1, out=exponents))) + 1
        if smallest >> _UNSIGNED_EXPONENT_SHIFT < _NONFINITE_BIN:
            self._absmin = min(self._absmin, float(np.uint32(smallest >> 1).view(np.float32)))
        if counts[_NONFINITE_BIN]:
            x = self._count_nonfinite(x)
        if x.size:
            self._minimum = min(self._minimum, float(np.minimum.reduce(x)))
            self._maximum = max(self._maximum, float(np.maximum.reduce(x)))

    def _count_nonfinite(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Count NaN and infinities and return the other elements."""
        self._nan += int(np.count_nonzero(np.isnan(x)))
        self._posinf += int(np.count_nonzero(np.isposinf(x)))
        self._neginf += int(np.count_nonzero(np.isneginf(x)))
        return x[np.isfinite(x)]


def larger_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that stands for both in a ``ValueRange``: more elements, then lexicographically larger."""
    return max(a, b, key=lambda shape: (math.prod(shape), shape))


def _is_integral(x: NDArray[Any]) -> bool:
    """True when every finite element is an integer."""
    for part in (x[:_PREFIX], x[_PREFIX:]):
        if not (np.rint(part) == part).all():
            finite = part[np.isfinite(part)]
            if not (np.rint(finite) == finite).all():
                return False
    return True


def _inside_float32(x: NDArray[Any]) -> NDArray[np.float32]:
    """Convert to float32; finite stays finite and non-zero stays non-zero."""
    narrow = x.astype(np.float32)
    if x.dtype.itemsize > narrow.dtype.itemsize:
        lost = np.isinf(narrow) & np.isfinite(x)
        np.copyto(narrow, np.copysign(np.float32(FP32.max_finite), narrow), where=lost)
        vanished = (narrow == 0) & (x != 0)
        np.copyto(narrow, np.copysign(np.float32(FP32.smallest_subnormal), narrow), where=vanished)
    return narrow
