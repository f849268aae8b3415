"""One conversion under all checks: what the trap, case, opset and property tests have in common."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx import ModelProto, TensorProto

import converter
from converter.types import Report
from tests.conformance.emulation import NARROW, Runnable, element_of, emulated, inlined, scoped_types
from tests.conformance.figures import error
from tests.conformance.validity import FLOATS, faults

UNCOUNTED = frozenset(("Cast", "CastLike", "Constant", "ConstantOfShape", "Identity", "Shape", "Size"))
CONTROL = frozenset(("If", "Loop", "Scan", "SequenceMap", "SequenceEmpty"))


@dataclass(frozen=True, slots=True)
class Examined:
    """A conversion with all that was found wrong with it.

    ``error`` is the worst relative L2 error of any output on any batch, measured by the second emulator.
    """

    made: ModelProto
    report: Report
    problems: tuple[str, ...]
    error: float

    def text(self) -> str:
        return onnx.printer.to_text(self.made)


def examine(
    model: ModelProto, batches: Sequence[Mapping[str, Any]] | Mapping[str, Any], to: str, **options: Any
) -> Examined:
    """Convert, check the graph, run it where it can run, and measure it against FP32."""
    feeds = [batches] if isinstance(batches, Mapping) else list(batches)
    given = ModelProto()
    given.CopyFrom(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = converter.convert(given, feeds, to=to, **options)
    assert converted.model is not None
    made = ir.to_proto(converted.model)
    problems = faults(model, made)
    worst = 0.0
    if given.SerializeToString() != model.SerializeToString():
        problems.append("the given model was changed")
    try:
        if to == "fp16" and deploys(model, feeds[0]) is None:
            problem = deploys(made, feeds[0])
            problems += [f"does not deploy: {problem}"] if problem else []
        worst = measured(model, made, feeds)
    except Exception as problem:
        problems.append(f"does not run: {type(problem).__name__}: {' '.join(str(problem).split())[:400]}")
    problems += _honesty(converted.report, worst)
    return Examined(made, converted.report, tuple(problems), worst)


def deploys(model: ModelProto, feeds: Mapping[str, Any]) -> str | None:
    """What stops ONNX Runtime, with its optimiser on, from running a model; None when nothing does."""
    try:
        Runnable(model, optimise=True).run(feeds)
    except Exception as problem:
        return f"{type(problem).__name__}: {' '.join(str(problem).split())[:400]}"
    return None


def measured(model: ModelProto, made: ModelProto, feeds: Sequence[Mapping[str, Any]]) -> float:
    """The worst error of any output on any batch."""
    reference, mixed = Runnable(emulated(model)), Runnable(emulated(made))
    worst = 0.0
    for batch in feeds:
        expected, got = reference.run(batch), mixed.run(batch)
        worst = max([worst, *(error(expected[name], got[name]) for name in expected)])
    return worst


def _honesty(report: Report, worst: float) -> list[str]:
    """A pass verdict is kept by the second emulator, and the stated figure is what it measures."""
    allowed = [o.allowed.max_rel_l2 for o in report.outputs if o.allowed.max_rel_l2 is not None]
    if report.verdict.status == "pass" and worst > 2 * max(allowed, default=0.0) and worst > 1e-5:
        return [f"verdict pass, but the error is {worst:.3g}"]
    stated = [o.figures.rel_l2_error for o in report.outputs if o.figures is not None]
    found = max((math.inf if s is None else s for s in stated), default=0.0)
    if math.isfinite(worst) and (found > 2e-5 if worst <= 1e-5 else not worst / 2 <= found <= worst * 2):
        return [f"the report states an error of {found:.3g}, measured {worst:.3g}"]
    return []


def narrow_nodes(model: ModelProto, body: str = "") -> list[str]:
    """Operators that compute in a narrow type, in the order of the file; Casts, constants and control flow aside.

    ``body`` restricts the search to graphs of that name.
    """
    found = []
    for graph, kinds in scoped_types(inlined(model)):
        types = {name: element_of(kind) for name, kind in kinds.items()}
        for node in graph.node if not body or graph.name == body else ():
            if node.op_type in UNCOUNTED | CONTROL:
                continue
            floats = [t for n in node.output if n and (t := types.get(n)) in FLOATS]
            inputs = [types.get(n) for n in node.input if n]
            if any(t in NARROW for t in floats) or (not floats and any(t in NARROW for t in inputs)):
                found.append(node.op_type)
    return found


def element_types(model: ModelProto) -> dict[str, int | None]:
    """Element types of all values by name; names are taken as unique."""
    return {name: element_of(kind) for _, kinds in scoped_types(model) for name, kind in kinds.items()}


FLOAT32 = TensorProto.FLOAT
