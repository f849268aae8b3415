"""Comparing without a tolerance: integers, booleans, strings, and floats of eight bits and fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FLOATS = frozenset((np.float16, np.float32, np.float64))
"""NumPy's own floats; ml_dtypes has others, some of which say they are of kind ``f`` too."""


def is_measured(array: NDArray[Any]) -> bool:
    """Whether error figures speak of an array: FP32, FP64 and FP16 as NumPy knows them."""
    return array.dtype.type in _FLOATS


def is_small(array: NDArray[Any]) -> bool:
    """Whether elements are of a type NumPy lacks: bfloat16, 8-bit floats, integers and floats of 4 and 2 bits."""
    return array.dtype.type.__module__ != np.generic.__module__


def differing(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Number of elements that differ between arrays of one shape; NaN equals NaN, small floats go by their bits."""
    if is_measured(a):
        return int(np.sum((a != b) & ~(np.isnan(a) & np.isnan(b))))
    if is_small(a):
        bits = np.dtype(f"u{a.dtype.itemsize}")
        a, b = a.view(bits), b.view(bits)
    return int(np.sum(a != b))
