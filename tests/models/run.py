"""Running models and plans in tests: by the interpreter, and by ONNX Runtime whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from converter.conversion import same_bits
from converter.formats import NARROW_FORMATS
from converter.graph import ModelIndex, index_model
from converter.policy.context import Context
from converter.policy.decide import decide
from converter.policy.layout import lay_out
from converter.ranges.batches import Batch
from converter.ranges.constants import measure_constant, survey_constants
from converter.ranges.observe import observe
from converter.rewrite.apply import rewrite
from converter.runtime.formatting import FormatSpec, declared_formats
from converter.runtime.interpreter import Interpreter, RunResult
from converter.runtime.session import WholeModel
from converter.source.type_propagation import propagate_types
from converter.types import ClampSite, ConversionRequest, Decision, PrecisionPlan, ValueRange
from tests.models.build import node, value

Feeds = Mapping[str, Any]


def run(index: ModelIndex, feeds: Feeds, *specs: FormatSpec, **settings: Any) -> RunResult:
    """One batch through an interpreter of its own; without specs the file's own formats."""
    return Interpreter(index, **settings).run(feeds, list(specs) or [declared_formats(index)])


def outputs(index: ModelIndex, feeds: Feeds, **settings: Any) -> dict[str, Any]:
    """What the interpreter makes of a model as it stands."""
    found = run(index, feeds, **settings).outputs[0]
    assert found is not None
    return found


def whole(proto: onnx.ModelProto, feeds: Feeds) -> dict[str, Any]:
    """What ONNX Runtime makes of it, whole, without optimisation and pre-packing."""
    return WholeModel(proto.SerializeToString()).run(feeds)


def assert_same(expected: Mapping[str, Any], got: Mapping[str, Any] | None) -> None:
    """Equality bit for bit, by name."""
    assert got is not None
    assert list(expected) == list(got)
    for name, array in expected.items():
        assert same_bits(array, got[name]), f"'{name}' differs:\n{array}\n{got[name]}"


def ranges_of(index: ModelIndex, batches: Sequence[Feeds]) -> dict[int, ValueRange]:
    return observe(Interpreter(index), [Batch(str(k), feeds) for k, feeds in enumerate(batches)])


def context_of(index: ModelIndex, batches: Sequence[Feeds] = (), **options: Any) -> Context:
    """What a conversion knows before it decides."""
    ranges = ranges_of(index, batches) if batches else {}
    return Context(index, ConversionRequest(**options), ranges, measure_constant, survey_constants)


def plan_of(index: ModelIndex, batches: Sequence[Feeds] = (), **options: Any) -> PrecisionPlan:
    return decide(context_of(index, batches, **options))


def rewritten(index: ModelIndex, plan: PrecisionPlan, narrow_io: bool = False) -> ModelIndex:
    """The rewritten model, typed and indexed anew; the given index is used up."""
    model: ir.Model = rewrite(index, plan, narrow_io).model
    propagate_types(model, index.catalog)
    return index_model(model, index.catalog)


def narrow_labels(plan: PrecisionPlan) -> list[str]:
    """Labels of the narrow nodes, in order."""
    return [d.node for d in plan.decisions if d.format == plan.to]


def rule_of(plan: PrecisionPlan, label: str) -> str:
    return next(d.rule for d in plan.decisions if d.node == label)


def reason_of(plan: PrecisionPlan, label: str) -> str:
    return next(d.reason for d in plan.decisions if d.node == label)


def floats(values: Iterable[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(list(values), np.float32)


def plan_with(
    index: ModelIndex,
    *narrow: str,
    to: str = "fp16",
    narrow_io: bool = False,
    clamps: Sequence[ClampSite] = (),
    saturated: Mapping[int, float] | None = None,
) -> PrecisionPlan:
    """The plan in which just these nodes (by label, or by their first output) are narrow."""
    context = context_of(index, to=to)
    chosen = {node(index, name) for name in narrow}
    ports = [context.ports[n] if n in chosen else context.wide_ports(n) for n in range(len(index.nodes))]
    layout = lay_out(index, ports, NARROW_FORMATS[to], narrow_io)
    decisions = tuple(
        Decision(n, index.labels[n], made.op_type, to if n in chosen else "fp32", "test", "by hand")
        for n, made in enumerate(index.nodes)
    )
    return PrecisionPlan(
        to, decisions, layout.stored, layout.reads, layout.leaves, layout.casts, tuple(clamps), dict(saturated or {})
    )


def clamp(index: ModelIndex, name: str, place: str, bound: float = 65504.0, zone: str = "beyond") -> ClampSite:
    """A Clip in front of a value's cast, or behind the node that makes it."""
    value_id = value(index, name)
    producer = index.producer[value_id]
    return ClampSite(value_id, name, index.labels[producer] if producer >= 0 else "", place, zone, bound, 1e5)
