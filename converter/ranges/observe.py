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


def observe(
    interpreter: Interpreter, batches: Iterable[Batch], progress: Callable[[int], None] = lambda _: None
) -> dict[int, ValueRange]:
    """Run all batches in FP32 and return the range of every float value that was made; constants are left out.

    One batch's live values are in memory at a time.  ``progress`` is told how many batches are done.
    """
    spec = declared_formats(interpreter.index)
    found: dict[int, ValueRange] = {}
    for number, batch in enumerate(batches):
        tap = RangeTap(interpreter.index, interpreter.background)
        interpreter.run(batch.feeds, [spec], [tap])
        for value_id, seen in tap.ranges().items():
            found[value_id] = merge(found[value_id], seen) if value_id in found else seen
        progress(number + 1)
    return found
