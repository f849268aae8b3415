"""Merging ranges, and questions a range can answer about a narrow format.

Shares are of the *finite non-zero* elements (0.0 when there is none).  They come from the histogram of binary
exponents: exact at powers of two from FP32's smallest normal up, and otherwise an upper bound, because a bin that
the threshold cuts counts whole.  Bins that the observed extremes rule out count for nothing.
"""

from __future__ import annotations

import math
from typing import Final

from converter.formats import FP32, FloatFormat
from converter.numerics.range_sums import larger_shape
from converter.types import EXPONENT_BINS, ValueRange

_EXPONENT_OF_BIN_ONE: Final = math.frexp(FP32.smallest_normal)[1] - 1
_FINITE_BINS: Final = EXPONENT_BINS - 1


def merge(a: ValueRange, b: ValueRange) -> ValueRange:
    """Return the range of everything that ``a`` and ``b`` saw; associative and commutative."""
    with_finite = [r for r in (a, b) if r.count > r.nonfinite]
    return ValueRange(
        shape=larger_shape(a.shape, b.shape),
        count=a.count + b.count,
        zeros=a.zeros + b.zeros,
        minimum=min((r.minimum for r in with_finite), default=0.0),
        maximum=max((r.maximum for r in with_finite), default=0.0),
        absmax=max(a.absmax, b.absmax),
        absmin_nonzero=min((r.absmin_nonzero for r in (a, b) if r.absmin_nonzero), default=0.0),
        nan_count=a.nan_count + b.nan_count,
        posinf_count=a.posinf_count + b.posinf_count,
        neginf_count=a.neginf_count + b.neginf_count,
        integral=a.integral and b.integral,
        exponents=tuple(x + y for x, y in zip(a.exponents, b.exponents, strict=True)),
    )


def share_below(seen: ValueRange, threshold: float) -> float:
    """Share of magnitudes below ``threshold``: exact at a power of two, else an upper bound."""
    return _share_between(seen, 0.0, threshold)


def share_at_or_above(seen: ValueRange, threshold: float) -> float:
    """Share of magnitudes of at least ``threshold``: exact at a power of two, else an upper bound."""
    return _share_between(seen, threshold, math.inf)


def underflow_share(seen: ValueRange, fmt: FloatFormat) -> float:
    """Share that rounds to zero in ``fmt``: magnitudes up to half the smallest subnormal.

    Exact for FP16, but for elements that equal the limit itself (they tie to zero and are not counted); an upper
    bound for BF16, where all of FP32's subnormals share one bin.
    """
    return _share_between(seen, 0.0, fmt.smallest_subnormal / 2)


def subnormal_share(seen: ValueRange, fmt: FloatFormat) -> float:
    """Share below the smallest normal of ``fmt`` that does not underflow; with the limits of ``underflow_share``."""
    return _share_between(seen, fmt.smallest_subnormal / 2, fmt.smallest_normal)


def overflow_share(seen: ValueRange, fmt: FloatFormat) -> float:
    """Share that rounds to infinity in ``fmt``: an upper bound, 0.0 exactly when nothing does.

    The threshold lies inside a bin (65520 in FP16), so everything in the format's last binade counts as soon as
    one element overflows.
    """
    return _share_between(seen, fmt.overflow_threshold, math.inf)


def headroom_bits(seen: ValueRange, fmt: FloatFormat) -> float | None:
    """Factor from the largest magnitude seen to the format's maximum, in bits (negative: beyond it).

    None when no finite element differs from zero.
    """
    return math.log2(fmt.max_finite / seen.absmax) if seen.absmax else None


def _share_between(seen: ValueRange, low: float, high: float) -> float:
    """Share of magnitudes in ``[low, high)``; the bins that either end cuts count whole."""
    counts = seen.exponents[:_FINITE_BINS]
    total = sum(counts)
    if total == 0 or seen.absmax < low or seen.absmin_nonzero >= high:
        return 0.0
    first = _bin_of(max(low, seen.absmin_nonzero))
    stop = _bins_below(min(high, math.nextafter(seen.absmax, math.inf)))
    return sum(counts[first:stop]) / total


def _bin_of(magnitude: float) -> int:
    """Bin of the histogram that a magnitude falls into; 0 holds everything below FP32's smallest normal."""
    return max(0, math.frexp(magnitude)[1] - _EXPONENT_OF_BIN_ONE)


def _bins_below(limit: float) -> int:
    """Number of bins that hold some magnitude below ``limit``: not the limit's own bin when it starts there."""
    own = _bin_of(limit)
    return own if own and math.frexp(limit)[0] == 0.5 else own + 1
