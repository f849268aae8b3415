"""Comparing without a tolerance: integers, booleans, strings, and floats of eight bits and fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BUILT_IN = 1
"""``dtype.isbuiltin`` of NumPy's own types; ml_dtypes' are 2, though some of them say they are of kind ``f``."""


def is_measured(array: NDArray[Any]) -> bool:
    """Whether error figures speak of an array: FP32, FP64 and FP16 as NumPy knows them."""
    return array.dtype.kind == "f" and array.dtype.isbuiltin == _BUILT_IN


def differing(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Number of elements that differ between arrays of one shape; NaN equals NaN, small floats go by their bits."""
    if is_measured(a):
        return int(np.sum((a != b) & ~(np.isnan(a) & np.isnan(b))))
    if a.dtype.isbuiltin != _BUILT_IN:
        bits = np.dtype(f"u{a.dtype.itemsize}")
        a, b = a.view(bits), b.view(bits)
    return int(np.sum(a != b))
