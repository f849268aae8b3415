"""Measurements on a thread of their own, while the runtime's kernels run.

NumPy hands over Python's lock for the few microseconds of each operation only, so two threads that both measure win
nothing; one that measures while the other waits for a kernel wins a core.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from numpy.typing import NDArray

WORTH: Final = 2**15
"""Elements from which a measurement is handed over; below, the hand-over costs as much."""

MAX_WAITING_BYTES: Final = 64 * 2**20
"""Bytes of arrays that may wait; whoever hands over more waits for some to be measured."""


class Background:
    """Does what it is given in that order on one thread, which starts when first needed."""

    def __init__(self, threads: int = 1) -> None:
        self._alone = threads < 2
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], int]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._waiting = self._waiting_bytes = 0
        self._failure: BaseException | None = None
        self._started = False

    def takes(self, size: int) -> bool:
        """Whether measuring an array of so many elements is worth handing over."""
        return size >= WORTH and not self._alone

    def put(self, work: Callable[[], None], size: int) -> None:
        """Hand over something that keeps ``size`` bytes alive until it is done."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._work, name="narrowcast-measure", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._waiting_bytes + size <= MAX_WAITING_BYTES)
            self._waiting += 1
            self._waiting_bytes += size
        self._queue.put((work, size))

    def drain(self) -> None:
        """Wait until everything is done; the first failure of any of it is raised here."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        while True:
            work, size = self._queue.get()
            try:
                work()
            except BaseException as error:
                self._failure = self._failure or error
            del work  # and the arrays with it, before the next one is waited for
            with self._changed:
                self._waiting -= 1
                self._waiting_bytes -= size
                self._changed.notify_all()


class Sums(Protocol):
    """Something that measures arrays added to it."""

    @property
    def add(self) -> Callable[..., None]:
        """Adds an array, and what else is needed to measure it."""


Kind = TypeVar("Kind", bound=Sums)


class Gathering(Generic[Kind]):
    """Sums by value id: small arrays are added at once, large ones in the background.

    The order of additions to one value's sums is that of the calls, whatever thread makes them.
    """

    def __init__(self, make: Callable[[], Kind], background: Background) -> None:
        self._make = make
        self._background = background
        self._sums: dict[int, Kind] = {}
        self._behind: set[int] = set()
        """Values whose sums the background thread has."""

    def add(self, value_id: int, array: NDArray[Any], *more: Any) -> Kind:
        """Add an array (and what else the sums take) to a value's sums; returns them, complete or not."""
        sums = self._sums.get(value_id)
        if sums is None:
            sums = self._sums[value_id] = self._make()
        if self._background.takes(array.size) or value_id in self._behind:
            self._behind.add(value_id)
            self._background.put(lambda: sums.add(array, *more), array.nbytes * (2 if more else 1))
        else:
            sums.add(array, *more)
        return sums

    def take(self) -> dict[int, Kind]:
        """All sums once they are complete; afterwards there are none."""
        if self._behind:
            self._background.drain()
        found, self._sums, self._behind = self._sums, {}, set()
        return found
