"""Compare: run the mixed plan against FP32 on every batch and collect figures for outputs and layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.compare.outputs import OutputRecord, compare_outputs
from converter.compare.tap import AccumulatedTap, LocalTap
from converter.graph import ModelIndex
from converter.runtime.formatting import FormatSpec, declared_formats
from converter.runtime.interpreter import Interpreter
from converter.types import ErrorFigures, VerdictReason


@dataclass(eq=False)
class Comparison:
    """What one plan did on all batches: records by output, figures by value id, failures of the mixed stream."""

    outputs: dict[str, OutputRecord]
    accumulated: dict[int, ErrorFigures]
    local: dict[int, ErrorFigures]
    shapes: dict[int, tuple[int, ...]]
    touched: dict[int, int]
    failures: list[VerdictReason]
    kept_outputs: list[dict[str, Any] | None]
    """The mixed outputs of the first batches, for checking the written file against them."""
    batches: int
    references: list[dict[str, Any]] = field(default_factory=list)
    """FP32 outputs of every batch, where they were asked for."""


def compare(
    interpreter: Interpreter,
    spec: FormatSpec,
    batches: Iterable[Mapping[str, Any]],
    local: bool = True,
    every_metric: bool = False,
    layers: bool = True,
    keep: int = 0,
    keep_references: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Run reference and plan in lock step over all batches.

    ``layers`` off compares outputs only, which is what a search needs; ``local`` adds each node alone; the mixed
    outputs of the first ``keep`` batches are kept, and with ``keep_references`` the FP32 ones of all.
    """
    index = interpreter.index
    reference = declared_formats(index)
    accumulated = AccumulatedTap(index, spec, interpreter.background, every_metric)
    alone = LocalTap(index, spec, interpreter.background)
    taps = ([accumulated] if layers else []) + ([alone] if local and layers else [])
    records = output_records(index, spec)
    failures: list[VerdictReason] = []
    kept: list[dict[str, Any] | None] = []
    references: list[dict[str, Any]] = []
    count = 0
    for number, feeds in enumerate(batches):
        result = interpreter.run(feeds, [reference, spec], taps)
        expected, mixed = result.outputs
        assert expected is not None
        compare_outputs(records, expected, mixed, number)
        if keep_references:
            references.append(expected)
        if number < keep:
            kept.append(mixed)
        failure = result.failures[1]
        if failure is not None and not failures:
            text = f"the mixed model fails at node '{failure[0]}' in batch {number}: {failure[1]}"
            failures.append(VerdictReason("runs", None, None, layer=failure[0], message=text))
        for tap in taps:
            tap.end_batch()
        count = number + 1
        progress(count)
    return Comparison(
        records,
        accumulated.worst,
        alone.worst,
        accumulated.shapes,
        accumulated.touched,
        failures,
        kept,
        count,
        references,
    )


def output_records(index: ModelIndex, spec: FormatSpec) -> dict[str, OutputRecord]:
    """Empty records for the graph's outputs; ``fmt`` is the format an output had before it left the graph."""
    return {
        value.name or "": OutputRecord(value.name or "", spec.stored[index.id_of(value)])
        for value in index.model.graph.outputs
    }
