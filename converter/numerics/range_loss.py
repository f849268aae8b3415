"""What rounding to a narrow format would lose, estimated from a histogram of binary exponents."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from converter.formats import FP32, FloatFormat
from converter.types import EXPONENT_BINS, ValueRange

_BIAS: Final = 2 ** (FP32.exponent_bits - 1) - 1
_EXPONENTS: Final = np.arange(EXPONENT_BINS, dtype=np.float64) - _BIAS
_MEAN_SQUARE: Final = 7 / 3
"""Mean of x squared for x uniform in [1, 2)."""


def expected_loss(seen: ValueRange, fmt: FloatFormat) -> float:
    """Relative L2 error that rounding to ``fmt`` makes on values distributed like ``seen``.

    Subnormals lose an absolute error of their fixed spacing, values below half the smallest subnormal all of
    themselves.  Overflow is not counted here.  0.0 when there is nothing but zeros.
    """
    counts = np.asarray(seen.exponents, np.float64)
    counts = np.where(np.arange(EXPONENT_BINS) == EXPONENT_BINS - 1, 0, counts)
    scale = np.exp2(_EXPONENTS)
    power = counts * scale**2 * _MEAN_SQUARE
    total = float(power.sum())
    if total == 0.0:
        return 0.0
    spacing = np.maximum(scale * fmt.eps, fmt.smallest_subnormal)
    lost = np.minimum(spacing**2 / 12, scale**2 * _MEAN_SQUARE)
    return math.sqrt(float((counts * lost).sum()) / total)


def loss_bound(mean_square: float, fmt: FloatFormat) -> float:
    """An upper bound of ``expected_loss`` from the mean square of all elements (zeros included).

    Every element loses at most ``eps²/12`` of its binade's square and ``s²/12`` (``s``: the smallest subnormal), and
    an element's square is less than four times its binade's: in sums ``loss² <= eps²/28 + s²/(7 mean_square)``.
    A tenth is added for what the mean square may be off.
    """
    if mean_square <= 0.0:
        return math.inf
    square = fmt.eps**2 / 28 + fmt.smallest_subnormal**2 / (7 * mean_square)
    return math.sqrt(1.1 * square)


def flushed_share(seen: ValueRange, fmt: FloatFormat) -> float:
    """Share of the non-zero elements that lie in binades below half the smallest subnormal: they become zero."""
    counts = np.asarray(seen.exponents, np.float64)[:-1]
    total = float(counts.sum())
    if total == 0.0:
        return 0.0
    return float(counts[np.exp2(_EXPONENTS[:-1] + 1) <= fmt.smallest_subnormal / 2].sum()) / total
