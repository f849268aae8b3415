"""Walks over arrays in pieces that stay in a core's cache, and over large ones with several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")

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


_SPLIT_FROM: Final = 2**18
"""Elements from which an array is worth handing to another thread (a quarter of a millisecond of work)."""


class Parts:
    """Splits large arrays over threads.  Where the cuts lie depends on the size and the thread count alone, so
    results repeat.  NumPy lets other threads run while it works through a piece.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def split(self, size: int) -> bool:
        """Whether an array of so many elements is worth splitting."""
        return self._threads > 1 and size >= _SPLIT_FROM

    def map(self, work: Callable[[slice], Result], size: int) -> list[Result]:
        """``work`` on slices that cover ``size`` elements, in their order; one of them on this thread."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads - 1, "narrowcast-parts")
        count = min(self._threads, size * 2 // _SPLIT_FROM)
        step = -(-size // count)
        spans = [slice(start, min(start + step, size)) for start in range(0, size, step)]
        others = [self._pool.submit(work, span) for span in spans[1:]]
        return [work(spans[0]), *(other.result() for other in others)]


ALONE: Final = Parts()
"""Everything on the calling thread."""
