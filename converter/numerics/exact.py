"""Comparing without a tolerance: integers, booleans, strings, and floats of eight bits and fewer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ADDED = 2
"""``dtype.isbuiltin`` of ml_dtypes' types, some of which say they are of kind ``f``; of NumPy's own it is 1, or 0
when they name their byte order."""


def is_measured(array: NDArray[Any]) -> bool:
    """Whether error figures speak of an array: FP32, FP64 and FP16 as NumPy knows them."""
    return array.dtype.kind == "f" and array.dtype.isbuiltin != _ADDED


def differing(a: NDArray[Any], b: NDArray[Any]) -> int:
    """Number of elements that differ between arrays of one shape; NaN equals NaN, small floats go by their bits."""
    if is_measured(a):
        return int(np.sum((a != b) & ~(np.isnan(a) & np.isnan(b))))
    if a.dtype.isbuiltin == _ADDED:
        bits = np.dtype(f"u{a.dtype.itemsize}")
        a, b = a.view(bits), b.view(bits)
    return int(np.sum(a != b))
