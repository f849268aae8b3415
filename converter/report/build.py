"""Build: everything a conversion found, put into one ``Report`` record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from converter.formats import FORMATS, NARROW_FORMATS, format_of
from converter.graph import ModelIndex, holds_floats
from converter.operators import canonical_domain
from converter.source_lines import STACK_TRACE, innermost_line, module_of
from converter.types import (
    ClampOutcome,
    ErrorFigures,
    LayerComparison,
    PrecisionPlan,
    ValueRange,
)

ABNORMAL_FACTOR = 4.0
"""A layer whose error is more than this times its expectation is abnormal: a rounding's largest error is 2.4 times
its RMS, and the rest is for what the model does not know."""


@dataclass(frozen=True, slots=True)
class LayerEvidence:
    """What was measured for the layers of a model, by value id."""

    accumulated: Mapping[int, ErrorFigures]
    local: Mapping[int, ErrorFigures]
    ranges: Mapping[int, ValueRange]
    shapes: Mapping[int, tuple[int, ...]]
    expected: Mapping[int, float]


def layer_rows(index: ModelIndex, plan: PrecisionPlan, evidence: LayerEvidence) -> tuple[LayerComparison, ...]:
    """One row per float value that a node of the given model makes, in the order of the nodes."""
    return tuple(
        _row(index, plan, evidence, node_id, value_id)
        for node_id, outputs in enumerate(index.outputs)
        for value_id in outputs
        if value_id >= 0 and value_id not in index.constants and holds_floats(index.types[value_id])
    )


def _row(
    index: ModelIndex, plan: PrecisionPlan, evidence: LayerEvidence, node_id: int, value_id: int
) -> LayerComparison:
    node = index.nodes[node_id]
    accumulated = evidence.accumulated.get(value_id)
    observed = evidence.ranges.get(value_id)
    expected = evidence.expected.get(value_id)
    return LayerComparison(
        value=index.name_of(value_id),
        node=index.labels[node_id],
        op_type=node.op_type if canonical_domain(node.domain) == "" else f"{node.domain}.{node.op_type}",
        scope=index.scopes[index.node_scope[node_id]].path,
        format=stored_format(index, plan, value_id),
        shape=evidence.shapes.get(value_id, observed.shape if observed else ()),
        accumulated=accumulated,
        local=evidence.local.get(value_id),
        observed=observed,
        headroom_bits=headroom(observed, plan.to),
        expected_rel_l2=expected,
        status=_status(accumulated, expected),
        module=module_of(node.metadata_props, node.name or "", node.op_type),
        source_line=innermost_line(node.metadata_props.get(STACK_TRACE, "")),
        inputs=tuple(index.name_of(v) for v in index.inputs[node_id] if index.is_float(v) and v not in index.constants),
    )


def stored_format(index: ModelIndex, plan: PrecisionPlan, value_id: int) -> str:
    """Name of the format a value is stored in."""
    if value_id in plan.stored:
        return plan.stored[value_id]
    found = format_of(index.types[value_id])
    return found.name if found is not None else "fp64"


def headroom(observed: ValueRange | None, to: str) -> float | None:
    """Bits between the largest magnitude seen and the format's maximum; None for zeros and unseen values."""
    if observed is None or not observed.absmax:
        return None
    return math.log2(NARROW_FORMATS[to].max_finite / observed.absmax)


def _status(figures: ErrorFigures | None, expected: float | None) -> str:
    if figures is None:
        return "not run"
    if figures.misplaced_nonfinite:
        return "abnormal"
    limit = ABNORMAL_FACTOR * (expected or 0.0)
    return "abnormal" if figures.rel_l2_error is None or figures.rel_l2_error > limit + _NOISE else "as expected"


_NOISE = next(f for f in FORMATS if f.name == "fp32").eps
"""Two FP32 runs that read differently rounded zeros may differ by this much and mean nothing."""


def first_abnormal(layers: Sequence[LayerComparison]) -> str:
    """Name of the first layer that leaves its expectation; empty when none does."""
    return next((layer.value for layer in layers if layer.status == "abnormal"), "")


def clamp_outcomes(
    plan: PrecisionPlan, touched: Mapping[int, int], prices: Mapping[int, tuple[int, float | None]]
) -> tuple[ClampOutcome, ...]:
    """Every clamp of a plan: the number of values it touched, and (bytes, error) of widening instead where priced."""
    outcomes = []
    for site in plan.clamps:
        more, error = prices.get(site.value_id, (None, None))
        outcomes.append(ClampOutcome(site, touched.get(site.value_id, 0), more, error))
    return tuple(outcomes)
