"""The core error figures of one value, from sums taken in one pass over cache-sized pieces.

Sums run in float64, so that a figure does not inherit the error it measures; of large float32 pieces the squares
are added in float32 within rows and in float64 over them, which costs a third and is right to six digits.  Scratch
buffers belong to the thread, not to the object: there are thousands of these objects and they hold a dozen numbers
each.

Edges, for every figure in this package: a pair of elements of which either one is NaN or infinite is left out
of all sums and maxima; it is counted, and counted as misplaced unless both are NaN or the same infinity.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converter.formats import FloatFormat
from converter.numerics.chunks import CHUNK, chunks
from converter.numerics.compiled import Sums, error_sums
from converter.types import ErrorFigures

Float64Array = NDArray[np.float64]

_DOT_BLOCK = 8_192
"""Elements per dot product; OpenBLAS wakes its threads above 10,000, and idle threads spin."""

_SINGLE_FROM = 2_048
"""Elements from which an array of float32 is summed in float32 rows."""

_SINGLE_CHUNK = 2 * CHUNK
"""Elements per piece of it: three float32 buffers (768 KiB)."""

_TOO_SMALL = 1e-30
"""Mean square below which squares of float32 may have lost their digits; such pieces are summed in float64."""

_NEARLY_PARALLEL = 1e-2
"""Squared difference, over the norms' product, up to which the cosine is taken from the difference."""

_LARGEST = 2.0**500
"""Magnitudes are limited to this once squares have overflowed in float64, which takes FP64 values."""


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.first = np.empty(CHUNK)
        self.second = np.empty(CHUNK)
        self.difference = np.empty(CHUNK)
        self.single = np.empty(_SINGLE_CHUNK, np.float32)
        self.mask = np.empty(_SINGLE_CHUNK, np.bool_)


_SCRATCH = _Scratch()


class ErrorSums:
    """Accumulates how far a value is from its reference over any number of ``add`` calls.

    FP64 magnitudes beyond 2^500 count as 2^500, and differences below about 1e-162 vanish from the sums: no
    figure becomes NaN or infinite.
    """

    __slots__ = (
        "_absmax",
        "_compared",
        "_count",
        "_difference_sq",
        "_flushed",
        "_max_abs_error",
        "_misplaced",
        "_product",
        "_reference_nonfinite",
        "_reference_sq",
        "_saturated",
        "_value_nonfinite",
        "_value_sq",
    )

    def __init__(self) -> None:
        self._count = self._compared = 0
        self._reference_sq = self._value_sq = self._difference_sq = self._product = 0.0
        self._absmax = self._max_abs_error = 0.0
        self._reference_nonfinite = self._value_nonfinite = self._misplaced = 0
        self._saturated = self._flushed = 0

    def add(self, reference: NDArray[Any], value: NDArray[Any], fmt: FloatFormat | None = None) -> None:
        """Add two arrays of equal shape: float32 or float64 (narrow storage types work too, slower).

        ``fmt`` is the narrow format that ``value`` is stored in.  With it, elements are counted as *saturated*
        (the value is at the largest finite magnitude, the reference beyond it, infinity included) and *flushed*
        (the value is zero, the reference is finite and not zero).  Raises ValueError when the shapes differ.
        """
        require_equal_shapes(reference, value)
        single = reference.dtype == np.float32 and value.dtype == np.float32
        with np.errstate(all="ignore"):
            if not single or reference.size < _SINGLE_FROM:
                self._add_wide(reference, value, fmt)
                return
            for piece, other in chunks(reference, value, size=_SINGLE_CHUNK):
                if not self._add_single(piece, other, fmt):
                    self._add_wide(piece, other, fmt)

    def figures(self) -> ErrorFigures:
        """Return the core figures of everything added so far; those of the full set are None.

        ``rel_l2_error`` is 0.0 when both are equal, also when both are zero or empty; against a reference of zeros
        it is the norm of the value itself, so that a limit still says something.
        """
        relative = _relative(self._difference_sq, self._reference_sq)
        return ErrorFigures(
            count=self._count,
            rel_l2_error=math.sqrt(self._difference_sq) if relative is None else relative,
            max_abs_error=self._max_abs_error,
            cosine_similarity=_cosine(self._product, self._difference_sq, self._reference_sq, self._value_sq),
            sqnr_db=sqnr_db(relative),
            absmax=self._absmax,
            equal=self._max_abs_error == 0 and self._misplaced == 0,
            zero_reference=self._compared > 0 and self._reference_sq == 0,
            reference_nonfinite=self._reference_nonfinite,
            value_nonfinite=self._value_nonfinite,
            misplaced_nonfinite=self._misplaced,
            saturated=self._saturated,
            flushed=self._flushed,
        )

    def _add_wide(self, reference: NDArray[Any], value: NDArray[Any], fmt: FloatFormat | None) -> None:
        for piece, other in chunks(reference, value):
            self._add_chunk(piece, other, fmt)

    def _add_single(self, a: NDArray[np.float32], b: NDArray[np.float32], fmt: FloatFormat | None) -> bool:
        """Add a large piece of float32; False, with nothing added, where that would lose digits."""
        found = error_sums(a, b, fmt) or _sums_by_numpy(a, b, fmt)
        if not math.isfinite(found.a_sq + found.b_sq + found.d_sq):
            return False
        small = a.size * _TOO_SMALL
        if (found.a_sq < small and found.absmax) or (found.d_sq < small and found.largest):
            return False
        if found.b_sq < small and found.largest_value:
            return False
        self._count += a.size
        self._compared += a.size
        if fmt is not None:
            self._flushed += found.flushed
            self._saturated += found.saturated
        self._absmax = max(self._absmax, found.absmax)
        self._max_abs_error = max(self._max_abs_error, found.largest)
        self._reference_sq += found.a_sq
        self._value_sq += found.b_sq
        self._product += (found.a_sq + found.b_sq - found.d_sq) / 2
        self._difference_sq += found.d_sq
        return True

    def _add_chunk(self, reference: NDArray[Any], value: NDArray[Any], fmt: FloatFormat | None) -> None:
        size = reference.size
        a, b, d = _SCRATCH.first[:size], _SCRATCH.second[:size], _SCRATCH.difference[:size]
        np.copyto(a, reference, casting="unsafe")
        np.copyto(b, value, casting="unsafe")
        a_sq, b_sq = _dot(a, a), _dot(b, b)
        self._count += size
        self._compared += size
        if not math.isfinite(a_sq + b_sq):
            self._count_nonfinite(a, b, fmt)
            settle(a, b)
            a_sq, b_sq = _dot(a, a), _dot(b, b)
        absmax = _absmax(a)
        if fmt is not None:
            flushed, saturated = _stored(a, b, absmax, fmt)
            self._flushed += flushed
            self._saturated += saturated
        np.subtract(a, b, out=d)
        self._absmax = max(self._absmax, absmax)
        self._max_abs_error = max(self._max_abs_error, _absmax(d))
        self._reference_sq += a_sq
        self._value_sq += b_sq
        self._product += _dot(a, b)
        self._difference_sq += _dot(d, d)

    def _count_nonfinite(self, a: Float64Array, b: Float64Array, fmt: FloatFormat | None) -> None:
        """Count what ``settle`` is about to set aside."""
        finite_a, finite_b = np.isfinite(a), np.isfinite(b)
        aside = ~(finite_a & finite_b)
        self._compared -= int(np.count_nonzero(aside))
        self._reference_nonfinite += int(np.count_nonzero(~finite_a))
        self._value_nonfinite += int(np.count_nonzero(~finite_b))
        self._misplaced += int(np.count_nonzero(aside & (a != b) & ~(np.isnan(a) & np.isnan(b))))
        self._absmax = max(self._absmax, float(np.abs(a).max(where=finite_a, initial=0)))
        if fmt is not None:
            self._saturated += int(np.count_nonzero(np.isinf(a) & (np.abs(b) == fmt.max_finite)))


def _sums_by_numpy(a: NDArray[np.float32], b: NDArray[np.float32], fmt: FloatFormat | None) -> Sums:
    """What the compiled pass finds, by NumPy; maxima and counts are left out where a sum is not finite."""
    d = np.subtract(a, b, out=_SCRATCH.single[: a.size])
    found = Sums(_single_dot(a), _single_dot(b), _single_dot(d))
    if math.isfinite(found.a_sq + found.b_sq + found.d_sq):
        found.absmax, found.largest = _absmax(a), _absmax(d)
        found.largest_value = _absmax(b) if found.b_sq < a.size * _TOO_SMALL else 0.0
        if fmt is not None:
            found.flushed, found.saturated = _stored(a, b, found.absmax, fmt)
    return found


def _stored(a: NDArray[Any], b: NDArray[Any], absmax: float, fmt: FloatFormat) -> tuple[int, int]:
    """How many elements are flushed and how many saturated, among the finite ones."""
    zero = np.equal(b, 0, out=_SCRATCH.mask[: b.size])
    flushed = int(np.count_nonzero(zero & (a != 0))) if zero.any() else 0
    if absmax <= fmt.max_finite:
        return flushed, 0
    return flushed, int(np.count_nonzero((np.abs(b) == fmt.max_finite) & (np.abs(a) > fmt.max_finite)))


class DifferenceNorm:
    """Only ``‖reference‖`` and ``‖reference − value‖``, for measurements that need no other figure."""

    __slots__ = ("_difference_sq", "_reference_sq")

    def __init__(self) -> None:
        self._reference_sq = self._difference_sq = 0.0

    def add(self, reference: NDArray[Any], value: NDArray[Any]) -> None:
        """Add two arrays of equal shape.  Raises ValueError when the shapes differ."""
        require_equal_shapes(reference, value)
        with np.errstate(all="ignore"):
            for piece, other in chunks(reference, value):
                self._add_chunk(piece, other)

    def _add_chunk(self, reference: NDArray[Any], value: NDArray[Any]) -> None:
        a, b = _SCRATCH.first[: reference.size], _SCRATCH.second[: reference.size]
        d = np.subtract(reference, value, out=_SCRATCH.difference[: reference.size], dtype=np.float64)
        np.copyto(a, reference, casting="unsafe")
        a_sq, d_sq = _dot(a, a), _dot(d, d)
        if not math.isfinite(a_sq + d_sq):
            np.copyto(b, value, casting="unsafe")
            settle(a, b)
            np.subtract(a, b, out=d)
            a_sq, d_sq = _dot(a, a), _dot(d, d)
        self._reference_sq += a_sq
        self._difference_sq += d_sq

    def relative(self) -> float | None:
        """``‖reference − value‖ / ‖reference‖``; 0.0 when equal, None when only the reference is zero."""
        return _relative(self._difference_sq, self._reference_sq)


def relative_l2(reference: NDArray[Any], value: NDArray[Any]) -> float | None:
    """Relative L2 error of one array against another of equal shape; see ``DifferenceNorm``."""
    norm = DifferenceNorm()
    norm.add(reference, value)
    return norm.relative()


def sqnr_db(relative: float | None) -> float | None:
    """Signal-to-quantisation-noise ratio in decibels of a relative L2 error; None for no error and for None."""
    return -20 * math.log10(relative) if relative else None


def worst(a: ErrorFigures, b: ErrorFigures) -> ErrorFigures:
    """The figures of the worse of two batches, ``a`` when they tie.

    More misplaced NaN and infinities are worse than anything; then the larger relative L2 error, where None
    (an error against a zero reference) is the largest; then the larger absolute error.
    """
    return b if _badness(b) > _badness(a) else a


def _badness(figures: ErrorFigures) -> tuple[int, float, float]:
    relative = math.inf if figures.rel_l2_error is None else figures.rel_l2_error
    return figures.misplaced_nonfinite, relative, figures.max_abs_error


def require_equal_shapes(reference: NDArray[Any], value: NDArray[Any]) -> None:
    """Raise ValueError, with both shapes in its text, when they differ."""
    if reference.shape != value.shape:
        raise ValueError(f"reference has shape {reference.shape} and value {value.shape}; they must be equal")


def settle(a: Float64Array, b: Float64Array) -> None:
    """Make every pair with a NaN or infinity zero and limit the others to magnitudes whose squares are finite."""
    aside = ~(np.isfinite(a) & np.isfinite(b))
    for array in (a, b):
        array[aside] = 0
        np.clip(array, -_LARGEST, _LARGEST, out=array)


def _dot(a: Float64Array, b: Float64Array) -> float:
    """Dot product of flat contiguous arrays, in blocks that stay on this thread."""
    even = a.size - a.size % _DOT_BLOCK
    total = float(np.dot(a[even:], b[even:]))
    if even:
        total += float(np.vecdot(a[:even].reshape(-1, _DOT_BLOCK), b[:even].reshape(-1, _DOT_BLOCK)).sum())
    return total


def _single_dot(x: NDArray[np.float32]) -> float:
    """Sum of squares of a flat contiguous float32 array: float32 within rows, float64 over them."""
    even = x.size - x.size % _DOT_BLOCK
    total = float(np.dot(x[even:], x[even:])) if even != x.size else 0.0
    if even:
        rows = x[:even].reshape(-1, _DOT_BLOCK)
        total += float(np.add.reduce(np.vecdot(rows, rows), dtype=np.float64))
    return total


def _absmax(x: NDArray[Any]) -> float:
    """Largest magnitude of a flat array without NaN (one with NaN gives NaN)."""
    return max(float(np.maximum.reduce(x)), -float(np.minimum.reduce(x)))


def _relative(difference_sq: float, reference_sq: float) -> float | None:
    if difference_sq == 0:
        return 0.0
    return math.sqrt(difference_sq) / math.sqrt(reference_sq) if reference_sq else None


def _cosine(product: float, difference_sq: float, a_sq: float, b_sq: float) -> float:
    """Cosine similarity from its sums: 1 for two zero vectors, 0 for one, never beyond 1.

    Near 1 it comes from ``d² = (a − b)² + 2ab (1 − cos)``, for norms ``a`` and ``b``, which keeps the digits that the
    sum of products would lose.
    """
    if a_sq == 0 or b_sq == 0:
        return 1.0 if a_sq == b_sq else 0.0
    a, b = math.sqrt(a_sq), math.sqrt(b_sq)
    if difference_sq < _NEARLY_PARALLEL * a * b:
        return 1 - max(0.0, difference_sq / a / b - (a - b) / a * ((a - b) / b)) / 2
    return max(-1.0, min(1.0, product / a / b))
