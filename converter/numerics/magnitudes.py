"""How large the elements of a constant are: the three figures that settle most questions about it.

A whole range (with its histogram of exponents) costs ten times as much, and a model has gigabytes of constants.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from converter.types import Magnitudes

_ROW: Final = 8_192
"""Elements per dot product in float32: its relative error stays below 1e-3, and OpenBLAS on one thread."""


class MagnitudeSums:
    """Accumulates the ``Magnitudes`` of one value over any number of ``add`` calls."""

    __slots__ = ("_absmax", "_count", "_finite", "_square")

    def __init__(self) -> None:
        self._absmax = self._square = 0.0
        self._count = 0
        self._finite = True

    def add(self, x: NDArray[np.float32]) -> None:
        """Add a flat contiguous array."""
        if not x.size:
            return
        with np.errstate(all="ignore"):
            absmax = max(float(x.max()), -float(x.min()))
            square = _square_sum(x)
        self._finite = self._finite and math.isfinite(absmax) and math.isfinite(square)
        self._absmax = max(self._absmax, absmax)
        self._square += square
        self._count += x.size

    def merge(self, other: MagnitudeSums) -> None:
        """Add what another object saw."""
        self._finite = self._finite and other._finite
        self._absmax = max(self._absmax, other._absmax)
        self._square += other._square
        self._count += other._count

    def result(self) -> Magnitudes:
        """Return the figures of everything added so far."""
        return Magnitudes(self._absmax, self._square / self._count if self._count else 0.0, self._finite)


def _square_sum(x: NDArray[Any]) -> float:
    """Sum of squares: float32 within rows, float64 over them."""
    even = x.size - x.size % _ROW
    total = float(np.dot(x[even:], x[even:]))
    if even:
        rows = x[:even].reshape(-1, _ROW)
        total += float(np.vecdot(rows, rows).sum(dtype=np.float64))
    return total
