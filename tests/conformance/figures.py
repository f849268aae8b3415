"""Numbers against FP32, measured without the engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def error(reference: Any, got: Any) -> float:
    """Relative L2 error over finite elements; infinite where NaN, infinities, integers or shapes differ."""
    if isinstance(reference, list | tuple):
        if not isinstance(got, list | tuple) or len(got) != len(reference):
            return math.inf
        return max((error(a, b) for a, b in zip(reference, got, strict=True)), default=0.0)
    if not isinstance(reference, np.ndarray | np.generic):
        return 0.0 if type(reference) is type(got) else math.inf
    reference, got = np.asarray(reference), np.asarray(got)
    if reference.shape != got.shape:
        return math.inf
    if not _is_measured(reference):
        return 0.0 if reference.dtype == got.dtype and _same_bits(reference, got) else math.inf
    a, b = reference.astype(np.float64), got.astype(np.float64)
    odd = ~np.isfinite(a) | ~np.isfinite(b)
    if not np.array_equal(a[odd], b[odd], equal_nan=True):
        return math.inf
    top = float(np.abs(a[~odd]).max(initial=0.0)) or 1.0  # squares of large FP64 values overflow
    norm = float(np.linalg.norm(a[~odd] / top))
    difference = float(np.linalg.norm(a[~odd] / top - b[~odd] / top))
    return difference / norm if norm else difference * top


def _is_measured(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.name in ("float16", "bfloat16", "float32", "float64")


def _same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return bool(np.array_equal(a, b)) if a.dtype == object else a.tobytes() == b.tobytes()
