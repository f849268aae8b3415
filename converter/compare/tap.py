"""Taps that compare streams while they run: accumulated error per value, and local error per node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from converter.formats import FloatFormat
from converter.graph import ModelIndex, holds_floats
from converter.numerics.background import Background, Gathering
from converter.numerics.error_sums import ErrorSums, worst
from converter.numerics.exact import is_measured
from converter.numerics.full_metrics import combine_full, full_figures
from converter.runtime.formatting import FormatSpec, limited
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import Step
from converter.runtime.session import KernelFailure
from converter.runtime.stream import Stream
from converter.runtime.structures import StructureFailure
from converter.types import ErrorFigures


class AccumulatedTap:
    """Error of every float value of the mixed stream (position 1) against the reference (position 0)."""

    def __init__(self, index: ModelIndex, spec: FormatSpec, background: Background, every_metric: bool = False) -> None:
        self._index = index
        self._spec = spec
        self._every_metric = every_metric
        self._floats = [holds_floats(t) for t in index.types]
        # The full set needs the sums as they stand after each addition.
        self._sums = Gathering(ErrorSums, Background() if every_metric else background)
        self._full: dict[int, list[ErrorFigures]] = {}
        self.worst: dict[int, ErrorFigures] = {}
        self.full: dict[int, ErrorFigures] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.touched: dict[int, int] = {}
        """Elements beyond the bound of each clamped value, over all batches."""
        self._bounds = {**spec.cast_bounds, **spec.output_bounds}

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """Add a value that both streams made with one shape."""
        if not self._floats[value_id] or len(values) < 2:
            return
        reference, mixed = values[0], values[1]
        if isinstance(reference, list) and isinstance(mixed, list):
            self._add_sequence(value_id, reference, mixed)
            return
        if not isinstance(reference, np.ndarray) or not isinstance(mixed, np.ndarray):
            return
        self.shapes[value_id] = reference.shape
        bound = self._bounds.get(value_id)
        if bound is not None:
            beyond = int(np.count_nonzero(np.abs(reference) > bound))
            self.touched[value_id] = self.touched.get(value_id, 0) + beyond
        if reference.shape != mixed.shape:
            return
        fmt = self._spec.stored[value_id]
        sums = self._sums.add(value_id, reference, mixed, fmt)
        if self._every_metric and fmt is not None:
            self._full.setdefault(value_id, []).append(full_figures(sums.figures(), reference, mixed, fmt))

    def _add_sequence(self, value_id: int, reference: list[Any], mixed: list[Any]) -> None:
        """Add the elements of a sequence one by one; a sequence of another length is a finding of the run."""
        self.shapes[value_id] = (len(reference),)
        if [np.shape(e) for e in reference] == [np.shape(e) for e in mixed]:
            for element, other in zip(reference, mixed, strict=True):
                self._sums.add(value_id, element, other, None)

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Nothing to do before a step."""

    def end_batch(self) -> None:
        """Close a batch: keep the worst figures per value."""
        for value_id, sums in self._sums.take().items():
            figures = sums.figures()
            if value_id in self._full:
                figures = combine_full(figures, self._full[value_id])
            self.worst[value_id] = worst(self.worst[value_id], figures) if value_id in self.worst else figures
        self._full.clear()


class LocalTap:
    """Error of each node alone: the plan's formats on FP32 inputs, against the node's FP32 result."""

    def __init__(self, index: ModelIndex, spec: FormatSpec, background: Background) -> None:
        self._index = index
        self._spec = spec
        self._pending: dict[int, Any] = {}
        self._sums = Gathering(ErrorSums, background)
        self.worst: dict[int, ErrorFigures] = {}

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Run the node on the reference's inputs, rounded as the plan has them."""
        reference = streams[0]
        if reference.position != 0 or not _affected(self._spec, step):
            return
        feeds = [planned_feed(run, reference, self._spec, step, k) for k, v in enumerate(step.inputs) if v >= 0]
        feeds += [reference.load(v) for v in step.captured]
        narrow = self._spec.stored[step.made[0]] if step.made else None
        try:
            results = run.execute(step, feeds, 0, narrow)
        except (KernelFailure, StructureFailure):
            return  # the accumulated run tells of it
        for value_id, result in zip(step.made, results, strict=True):
            self._pending[value_id] = planned_result(run, self._spec, value_id, result)

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """Compare a pending local result with the reference."""
        local = self._pending.pop(value_id, None)
        reference = values[0]
        if not isinstance(local, np.ndarray) or not isinstance(reference, np.ndarray):
            return
        if not is_measured(local) or local.shape != reference.shape:
            return
        self._sums.add(value_id, reference, local, self._spec.stored[value_id])

    def end_batch(self) -> None:
        """Close a batch: keep the worst figures per value."""
        for value_id, sums in self._sums.take().items():
            figures = sums.figures()
            self.worst[value_id] = worst(self.worst[value_id], figures) if value_id in self.worst else figures
        self._pending.clear()


def _affected(spec: FormatSpec, step: Step) -> bool:
    """Whether the plan changes anything at a node."""
    if step.node_id in spec.reads:
        return True
    return any(v >= 0 and spec.stored[v] is not None for v in (*step.inputs, *step.outputs))


def planned_feed(run: Interpreter, reference: Stream, spec: FormatSpec, step: Step, position: int) -> Any:
    """A reference value as the plan would hand it to an input port."""
    value_id = step.inputs[position]
    stored = spec.stored[value_id]
    reads = spec.reads.get(step.node_id)
    wanted = reads[position] if reads else None
    if value_id in run.index.constants:
        fmt = wanted or stored
        return reference.load(value_id) if fmt is None else run.constants.rounded(value_id, fmt, spec.constant_bounds)
    value = reference.load(value_id)
    if not isinstance(value, np.ndarray):
        return value
    wanted = None if wanted is stored else wanted
    if stored is None and wanted is None:
        return value
    return reference.derived(value_id, wanted, lambda: _planned(run, spec, value_id, value, wanted))


def _planned(run: Interpreter, spec: FormatSpec, value_id: int, value: Any, wanted: FloatFormat | None) -> Any:
    stored = spec.stored[value_id]
    if stored is not None:
        value = held(run, value, stored, spec.output_bounds.get(value_id), clamp_first=False)
    if wanted is not None:
        value = held(run, value, wanted, spec.cast_bounds.get(value_id), clamp_first=True)
    return value


def planned_result(run: Interpreter, spec: FormatSpec, value_id: int, result: Any) -> Any:
    """A fresh result as the plan would store it."""
    stored = spec.stored[value_id]
    if stored is None or not isinstance(result, np.ndarray):
        return result
    return held(run, result, stored, spec.output_bounds.get(value_id), clamp_first=False)


def held(run: Interpreter, value: Any, fmt: FloatFormat, bound: float | None, clamp_first: bool) -> Any:
    """A value rounded to a format, with the Clip that stands before (or behind) the rounding."""
    if bound is not None and clamp_first:
        value = limited(value, bound)
    value = run.rounding(value, fmt)
    return limited(value, bound) if bound is not None and not clamp_first else value


def end_batches(taps: Iterable[AccumulatedTap | LocalTap]) -> None:
    """Close a batch on all taps."""
    for tap in taps:
        tap.end_batch()
