"""One case of onnx's operator suite through the engine, judged without it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node
import onnx_ir as ir
from onnx import ModelProto, TensorProto

import converter
from converter.errors import InputError
from converter.formats import NARROW_FORMATS
from tests.conformance.emulation import (
    NARROW,
    Runnable,
    all_nodes,
    element_of,
    emulated,
    holds_narrow,
    inlined,
    scoped_types,
)
from tests.conformance.figures import error
from tests.conformance.validity import faults

NEGLIGIBLE = 1e-5
"""Errors below this are FP32's own, and two emulators need not agree on them."""

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
)


@dataclass(frozen=True, slots=True)
class Case:
    """A model with one batch; ``has_fp32`` when a float tensor goes in or comes out."""

    name: str
    model: ModelProto
    feeds: Mapping[str, Any]
    expected: tuple[Any, ...]
    has_fp32: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case in one format.

    ``status``: ``pass``, ``fail`` (an honest verdict), ``refused`` (with a message), ``invalid`` (a graph fault),
    ``wrong`` (numbers beyond the bound behind a pass), ``crashed``.  ``runs`` says whether ONNX Runtime runs the
    given model; ``narrow`` are the operators that became narrow, ``operators`` all of the given model.
    """

    name: str
    to: str
    status: str
    reason: str
    runs: str
    error: float
    narrow: frozenset[tuple[str, str]]
    operators: frozenset[tuple[str, str]]


@cache
def cases() -> tuple[Case, ...]:
    """All node cases of the installed onnx."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = onnx.backend.test.case.node.collect_testcases(None)
        return tuple(_case(case) for case in found)


def _case(case: Any) -> Case:
    inputs, outputs = case.data_sets[0]
    names = [v.name for v in case.model.graph.input]
    ports = (*case.model.graph.input, *case.model.graph.output)
    has_fp32 = any(element_of(v.type) == TensorProto.FLOAT for v in ports)
    feeds = {name: _plain(value) for name, value in zip(names, inputs, strict=True)}
    return Case(case.name, case.model, feeds, tuple(map(_plain, outputs)), has_fp32)


def _plain(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return np.asarray(value) if isinstance(value, np.generic) else value


def run(case: Case, to: str) -> Outcome:
    """Convert a case and judge the result."""
    operators = frozenset((n.domain, n.op_type) for _, n in all_nodes(inlined(case.model)))
    runs, reference = _reference(case)

    def outcome(status: str, reason: str = "", worst: float = 0.0, narrow: Iterable[tuple[str, str]] = ()) -> Outcome:
        return Outcome(case.name, to, status, reason, runs, worst, frozenset(narrow), operators)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            converted = converter.convert(case.model, case.feeds, to=to)
    except InputError as refusal:
        return outcome(*_unchecked(case, to, str(refusal)))
    except Exception as problem:
        return outcome("crashed", f"{type(problem).__name__}: {problem}")
    assert converted.model is not None
    made = ir.to_proto(converted.model)
    problems = faults(case.model, made)
    if problems:
        return outcome("invalid", "; ".join(problems))
    verdict = converted.report.verdict
    narrow = narrow_operators(made)
    try:
        if to == "fp16" and not runs:
            Runnable(made, optimise=True).run(case.feeds)
        worst = _worst(case, reference, made) if reference is not None else 0.0
    except Exception as problem:
        return outcome("invalid", f"does not run: {type(problem).__name__}: {' '.join(str(problem).split())[:300]}")
    if verdict.status == "pass" and worst > bound(to, len(made.graph.node)):
        return outcome("wrong", f"error {worst:.3g}", worst, narrow)
    if reference is not None and (misstated := _misstated(converted.report, worst, made)):
        return outcome("wrong", misstated, worst, narrow)
    reason = "; ".join(r.message for r in verdict.reasons)
    return outcome(verdict.status, reason, worst, narrow)


def _unchecked(case: Case, to: str, refusal: str) -> tuple[str, str]:
    """A model that cannot be run can still be converted without running it."""
    if "use --no-validate" not in refusal:
        return "refused", refusal
    try:
        converted = converter.convert(case.model, None, to=to, validate=False)
    except Exception as problem:
        return "crashed", f"unchecked: {type(problem).__name__}: {problem}"
    problems = faults(case.model, ir.to_proto(converted.model)) if converted.model is not None else ["no model"]
    return ("invalid", "unchecked: " + "; ".join(problems)) if problems else ("refused", refusal)


def _misstated(report: Any, worst: float, made: ModelProto) -> str:
    """Where the report's worst figure is not, within a factor of two, what the second emulator measures."""
    if _is_random(made) or not math.isfinite(worst):
        return ""
    stated = [o.figures.rel_l2_error for o in report.outputs if o.figures is not None]
    found = max((math.inf if s is None else s for s in stated), default=0.0)
    same = found <= 2 * NEGLIGIBLE if worst <= NEGLIGIBLE else worst / 2 <= found <= worst * 2
    return "" if same else f"the report states an error of {found:.3g}, measured {worst:.3g}"


def bound(to: str, nodes: int) -> float:
    """A single rounding costs at most eps/2; every node may read two rounded operands and round its result.

    Errors of one rounding in ``nodes`` steps add up linearly at worst; operators here have gains of at most a few.
    """
    return 4 * NARROW_FORMATS[to].eps * max(nodes, 1)


def _reference(case: Case) -> tuple[str, dict[str, Any] | None]:
    """Why ONNX Runtime does not run the given model (empty: it does), and its outputs, emulated where narrow."""
    runs, reference = "", None
    try:
        reference = Runnable(case.model).run(case.feeds)
    except Exception as problem:
        runs = " ".join(str(problem).split())[:300]
    if holds_narrow(inlined(case.model)):
        try:
            reference = Runnable(emulated(case.model)).run(case.feeds)
        except Exception:
            reference = None
    return runs, reference


def _is_random(model: ModelProto) -> bool:
    """Whether a model draws numbers; a Dropout whose training_mode is not constant false may."""
    return any(
        node.op_type in RANDOM or (node.op_type == "Dropout" and len(node.input) > 2) for _, node in all_nodes(model)
    )


def _worst(case: Case, reference: Mapping[str, Any], made: ModelProto) -> float:
    if _is_random(made):
        return 0.0
    got = Runnable(emulated(made)).run(case.feeds)
    return max((error(reference[name], got[name]) for name in reference), default=math.inf)


def narrow_operators(made: ModelProto) -> set[tuple[str, str]]:
    """Operators that make a narrow float, or make none and read one."""
    found = set()
    for graph, kinds in scoped_types(made):
        types = {name: element_of(kind) for name, kind in kinds.items()}
        for node in graph.node:
            outputs = [types.get(n) for n in node.output if n]
            inputs = [types.get(n) for n in node.input if n]
            floats = [t for t in outputs if t in NARROW | {TensorProto.FLOAT, TensorProto.DOUBLE}]
            narrow = any(t in NARROW for t in floats) or (not floats and any(t in NARROW for t in inputs))
            if narrow and node.op_type not in ("Cast", "Constant"):
                found.add((node.domain, node.op_type))
    return found
