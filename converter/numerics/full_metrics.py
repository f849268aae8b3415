"""The full set of error figures: elementwise, by row and by winner, for outputs and suspicious layers.

Slower than the core set, but as lean: temporaries are as large as a piece, whatever the array.  The rule for
NaN and infinity is that of ``error_sums``: pairs that hold one are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from converter.formats import FloatFormat
from converter.numerics.chunks import CHUNK, chunks
from converter.numerics.error_sums import relative_l2, require_equal_shapes, settle
from converter.numerics.rounding import ulp
from converter.types import ErrorFigures

Float64Array = NDArray[np.float64]

FEWEST_SCORES: Final = 2
MOST_SCORES: Final = 100_000
"""Last axes that can be scores over classes or a vocabulary; longer ones are signals."""


def full_figures(core: ErrorFigures, reference: NDArray[Any], value: NDArray[Any], fmt: FloatFormat) -> ErrorFigures:
    """Return ``core`` with the full set filled in from the arrays it was taken from.

    ``fmt`` is the narrow format of the conversion, also where the value is stored as FP32: it sets the ULP and
    the magnitude below which a relative error means nothing.

    - ``max_rel_error``: largest ``abs(reference − value) / abs(reference)``; elements whose reference is below
      the smallest normal are left out and counted in ``max_rel_left_out``.
    - ``max_ulp_error``: largest difference in ULP of ``fmt`` at the reference.
    - ``worst_row_rel_l2``: see ``worst_row``.
    - ``top1_agreement``: see ``top1_agreement``; None unless the shape looks like scores.

    Raises ValueError when the shapes differ.
    """
    require_equal_shapes(reference, value)
    max_rel, left_out, max_ulp = 0.0, 0, 0.0
    with np.errstate(all="ignore"):
        for piece, other in chunks(reference, value):
            rel, out, units = _elementwise(piece.astype(np.float64), other.astype(np.float64), fmt)
            max_rel, left_out, max_ulp = max(max_rel, rel), left_out + out, max(max_ulp, units)
    return replace(
        core,
        max_rel_error=max_rel,
        max_rel_left_out=left_out,
        max_ulp_error=max_ulp,
        worst_row_rel_l2=worst_row(reference, value),
        top1_agreement=top1_agreement(reference, value) if looks_like_scores(reference.shape) else None,
    )


def combine_full(core: ErrorFigures, batches: Sequence[ErrorFigures]) -> ErrorFigures:
    """Return ``core`` (of all batches together) with the full set merged over ``batches``.

    Maxima are maxima, left-out elements add up, and agreement is weighted by elements, hence by rows as long as
    the last axis stays the same.  A figure that no batch has stays None; one None among several worst rows (an
    error against a zero reference) makes the worst row None.
    """
    full = [f for f in batches if f.max_rel_error is not None]
    if not full:
        return core
    scored = [(f.count, f.top1_agreement) for f in full if f.top1_agreement is not None]
    weight = sum(count for count, _ in scored)
    return replace(
        core,
        max_rel_error=max(f.max_rel_error or 0.0 for f in full),
        max_rel_left_out=sum(f.max_rel_left_out or 0 for f in full),
        max_ulp_error=max(f.max_ulp_error or 0.0 for f in full),
        worst_row_rel_l2=_largest([f.worst_row_rel_l2 for f in full]),
        top1_agreement=sum(count * share for count, share in scored) / weight if weight else None,
    )


def looks_like_scores(shape: tuple[int, ...]) -> bool:
    """True when the last axis may hold scores of classes, so that its largest element means a choice."""
    return len(shape) >= 1 and FEWEST_SCORES <= shape[-1] <= MOST_SCORES


def worst_row(reference: NDArray[Any], value: NDArray[Any]) -> float | None:
    """Return the largest relative L2 error of any row (along the last axis; up to rank 1 the whole array).

    A row whose reference is all zeros has no relative error of its own; it is measured against the
    root-mean-square norm of all rows.  None when the whole reference is zero and the value is not.
    """
    if reference.ndim < 2 or reference.size == 0:
        return relative_l2(reference, value)
    largest, largest_of_zero, reference_sq, rows = 0.0, 0.0, 0.0, 0
    with np.errstate(all="ignore"):
        for row_sq, difference_sq in _row_sums(reference, value):
            nonzero = row_sq > 0
            ratios = np.divide(difference_sq, row_sq, out=np.zeros_like(row_sq), where=nonzero)
            largest = max(largest, float(ratios.max()))
            largest_of_zero = max(largest_of_zero, float(difference_sq.max(where=~nonzero, initial=0)))
            reference_sq += float(row_sq.sum())
            rows += row_sq.size
    if largest_of_zero == 0:
        return math.sqrt(largest)
    return math.sqrt(max(largest, largest_of_zero * rows / reference_sq)) if reference_sq else None


def top1_agreement(reference: NDArray[Any], value: NDArray[Any]) -> float | None:
    """Return the share of rows (along the last axis) whose largest element stands in the same place.

    The first of equal elements wins, as in ONNX ArgMax; NaN counts as -inf, and a row of NaN on one side only
    does not agree.  None when there is no row.
    """
    agreeing = rows = 0
    for piece, other in _row_pieces(reference, value):
        winners, others = _winners(piece), _winners(other)
        agreeing += int(np.count_nonzero(winners == others))
        rows += winners.size
    return agreeing / rows if rows else None


def _elementwise(a: Float64Array, b: Float64Array, fmt: FloatFormat) -> tuple[float, int, float]:
    """Largest relative error, elements left out of it, largest error in ULP, over one flat piece."""
    kept = np.isfinite(a) & np.isfinite(b)
    if not kept.all():
        a, b = a[kept], b[kept]
    difference = np.abs(a - b)
    magnitude = np.abs(a)
    large = magnitude >= fmt.smallest_normal
    relative = np.divide(difference, magnitude, out=np.zeros_like(a), where=large)
    units = difference / ulp(a, fmt)
    return float(relative.max(initial=0)), int(np.count_nonzero(~large)), float(units.max(initial=0))


def _row_pieces(reference: NDArray[Any], value: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Both arrays as pieces ``[rows, last axis]`` of at most CHUNK elements, or of one row if that is longer."""
    width = reference.shape[-1]
    if reference.size == 0:
        return
    step = max(1, CHUNK // width)
    rows, others = reference.reshape(-1, width), value.reshape(-1, width)
    for start in range(0, rows.shape[0], step):
        yield rows[start : start + step], others[start : start + step]


def _row_sums(reference: NDArray[Any], value: NDArray[Any]) -> Iterator[tuple[Float64Array, Float64Array]]:
    """Sums of squares of the reference and of the difference, one number a row, piece by piece."""
    for piece, other in _row_pieces(reference, value):
        if piece.shape[1] > CHUNK:
            parts = [_square_sums(p[np.newaxis], o[np.newaxis]) for p, o in chunks(piece[0], other[0])]
            totals = np.sum(parts, axis=0)
            yield totals[0], totals[1]
        else:
            yield _square_sums(piece, other)


def _square_sums(reference: NDArray[Any], value: NDArray[Any]) -> tuple[Float64Array, Float64Array]:
    a, b = reference.astype(np.float64), value.astype(np.float64)
    sums = np.vecdot(a, a), np.vecdot(a - b, a - b)
    if np.isfinite(sums).all():
        return sums
    settle(a, b)
    return np.vecdot(a, a), np.vecdot(a - b, a - b)


def _winners(rows: NDArray[Any]) -> NDArray[np.intp]:
    """Place of the largest element of each row, NaN counting as -inf; -1 for a row of NaN."""
    missing = np.isnan(rows)
    if not missing.any():
        return np.asarray(rows.argmax(axis=1))
    winners = np.asarray(np.where(missing, -np.inf, rows).argmax(axis=1))
    return np.where(missing.all(axis=1), -1, winners)


def _largest(figures: Sequence[float | None]) -> float | None:
    known = [f for f in figures if f is not None]
    return max(known) if len(known) == len(figures) else None
