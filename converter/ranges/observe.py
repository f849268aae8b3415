"""Observe: the FP32 run that records a ``ValueRange`` for every float value, bodies included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from converter.graph import ModelIndex
from converter.numerics.background import Background, Gathering
from converter.numerics.range_sums import RangeSums
from converter.ranges.batches import Batch
from converter.ranges.merge import merge
from converter.runtime.formatting import declared_formats
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import Step
from converter.runtime.stream import Stream
from converter.types import ValueRange


class RangeTap:
    """Collects ranges of the reference stream."""

    def __init__(self, index: ModelIndex, background: Background) -> None:
        self._float = [index.is_float(v) for v in range(len(index.values))]
        self._sums: Gathering[RangeSums] = Gathering(RangeSums, background)

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """Add one float value of the reference."""
        if self._float[value_id] and isinstance(values[0], np.ndarray):
            self._sums.add(value_id, values[0])

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Nothing to do before a step."""

    def ranges(self) -> dict[int, ValueRange]:
        """What was seen, by value id."""
        return {value_id: sums.result() for value_id, sums in self._sums.take().items()}


PATIENCE = 8
"""Batches in a row that must not widen any range before observation stops early."""

GROWTH = 1.01
"""Factor by which a largest magnitude must grow to count: a hundredth is far below any headroom.  The smallest
magnitude does not count: that of continuous numbers goes on shrinking for ever."""


def observe(
    interpreter: Interpreter,
    batches: Iterable[Batch],
    progress: Callable[[int], None] = lambda _: None,
    until_stable: bool = False,
) -> dict[int, ValueRange]:
    """Run batches in FP32 and return the range of every float value that was made; constants are left out.

    One batch's live values are in memory at a time.  ``progress`` is told how many batches are done.  With
    ``until_stable`` no more is run once PATIENCE batches in a row have widened no range.
    """
    spec = declared_formats(interpreter.index)
    found: dict[int, ValueRange] = {}
    quiet = 0
    for number, batch in enumerate(batches):
        tap = RangeTap(interpreter.index, interpreter.background)
        interpreter.run(batch.feeds, [spec], [tap])
        widened = False
        for value_id, seen in tap.ranges().items():
            before = found.get(value_id)
            widened = widened or before is None or _widens(before, seen)
            found[value_id] = seen if before is None else merge(before, seen)
        progress(number + 1)
        quiet = 0 if widened else quiet + 1
        if until_stable and quiet >= PATIENCE:
            break
    return found


def _widens(before: ValueRange, seen: ValueRange) -> bool:
    """Whether a batch says something new: a larger magnitude, or a kind of non-finite not met before."""
    kinds = ("nan_count", "posinf_count", "neginf_count")
    new = any(getattr(seen, kind) and not getattr(before, kind) for kind in kinds)
    return new or seen.absmax > before.absmax * GROWTH
