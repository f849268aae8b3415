"""Walks over arrays in pieces that stay in a core's cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 32_768
"""Elements per piece: three float64 buffers of it (768 KiB) fit a second-level cache of 1 MiB."""


def chunks(*arrays: NDArray[Any], size: int = CHUNK) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield the arrays side by side as flat pieces of at most ``size`` elements, in row-major order.

    The arrays have equal sizes (the caller's promise).  Pieces of C-contiguous arrays are views; an array with
    other strides is copied once.  Empty arrays yield nothing.
    """
    flat = tuple(np.asarray(a, order="C").reshape(-1) for a in arrays)
    for start in range(0, flat[0].size, size):
        yield tuple(a[start : start + size] for a in flat)
