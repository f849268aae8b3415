"""The operator suite's outcomes as a text that is committed: counts, what cannot run and why, what became narrow."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import onnx
import onnx.defs
from onnx import NodeProto, TensorProto

from converter.formats import NARROW_FORMATS
from converter.policy.lookup import policy_for
from converter.types import OpClass
from tests.conformance.emulation import inlined, scoped_types

from .runner import Case, Outcome, cases, run

GOLDEN = Path(__file__).parents[1] / "golden"


@cache
def outcomes(to: str) -> tuple[Outcome, ...]:
    """Every case of onnx's operator suite converted to one format."""
    return tuple(run(case, to) for case in cases())


def lines(found: Iterable[Outcome]) -> str:
    """What a failing assertion shows: one line per case."""
    return "".join(f"\n  {o.name}: {o.status}: {o.reason}" for o in found)


def summary(to: str) -> str:
    """The golden text of a format."""
    found = outcomes(to)
    counts = Counter(o.status if not o.runs else f"{o.status}, FP32 does not run either" for o in found)
    narrow = sorted({_title(op) for o in found for op in o.narrow})
    parts = [
        f"{len(found)} cases of onnx {onnx.__version__} to {NARROW_FORMATS[to].label}\n",
        _section("outcomes", [f"{status}: {count}" for status, count in sorted(counts.items())]),
        _section("refused although ONNX Runtime runs it", _by_reason(o for o in found if refused(o) and not o.runs)),
        _section("ONNX Runtime does not run it in FP32", _by_reason((o for o in found if o.runs), given=True)),
        _section(f"narrow in at least one case: {len(narrow)} operators", _wrapped(narrow)),
        _section("could be narrow and is in no case", [f"{op}: {why}" for op, why in sorted(EXEMPT[to].items())]),
    ]
    return "\n".join(parts)


def refused(outcome: Outcome) -> bool:
    return outcome.status == "refused"


def _section(title: str, body: Sequence[str]) -> str:
    return f"## {title}\n" + "".join(f"{line}\n" for line in body or ["none"])


def _by_reason(found: Iterable[Outcome], given: bool = False) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for outcome in found:
        groups[_reason(outcome.runs if given else outcome.reason)].append(outcome.name)
    return [
        line
        for reason, names in sorted(groups.items())
        for line in (f"{reason} ({len(names)})", *(f"    {n}" for n in _wrapped(sorted(names), 112)))
    ]


def _reason(text: str) -> str:
    """A runtime's message without node names, source paths and numbers."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    text = re.sub(r"/[\w/.]+\.(cc|h):\d+ ?", "", text)
    text = re.sub(r"( with)? node with name ''|\(node name: [^)]*\)|Name:'[^']*' ?", "", text)
    return text[:150].strip()


def _wrapped(names: Sequence[str], width: int = 116) -> list[str]:
    rows, current = [], ""
    for name in names:
        if current and len(current) + len(name) + 1 > width:
            rows.append(current)
            current = ""
        current = f"{current} {name}".strip()
    return [*rows, current] if current else rows


def _title(op: tuple[str, str]) -> str:
    return f"{op[0]}::{op[1]}" if op[0] else op[1]


def check_golden(to: str) -> None:
    """Compare with the committed text, or write it when asked to (NARROWCAST_REGENERATE=1)."""
    path, text = GOLDEN / f"operator_suite_{to}.txt", summary(to)
    if os.environ.get("NARROWCAST_REGENERATE"):
        path.write_text(text)
    assert path.read_text() == text, f"{path.name} is not what the suite gives; regenerate it and review the diff"


# ------------------------------------------------------------------------------- what should be narrow


_INTEGERS_ONLY = (
    "its cases that run make no FP32, or make it from integers and ONNX Runtime has no FP16 kernel for that"
)
EXEMPT: dict[str, dict[str, str]] = {
    "fp16": {"EyeLike": _INTEGERS_ONLY},
    "bf16": {},
}
"""Operators that the schema allows, that are not WIDE and run in FP32, and still are narrow in no case."""


def should_be_narrow(to: str) -> set[str]:
    """Operators with an FP32 result in a case that runs, which schema and policy would let be narrow."""
    found: set[str] = set()
    for case, outcome in zip(cases(), outcomes(to), strict=True):
        if not outcome.runs and outcome.status == "pass":
            found |= _candidates(case, to)
    return found


def _candidates(case: Case, to: str) -> set[str]:
    model = inlined(case.model)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    found = set()
    for graph, types in scoped_types(model):
        for node in graph.node:
            if node.domain == "" and _may(node, opset, to) and _makes_fp32(node, types):
                found.add(node.op_type)
    return found - {"Constant", "Cast", "CastLike", "If", "Loop", "Scan"}


def _may(node: NodeProto, opset: int, to: str) -> bool:
    """Whether the schema allows the format for the first result, and the policy for the operator."""
    row = policy_for("", node.op_type, opset)
    if row is None or row.op_class is OpClass.WIDE:
        return False
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    variable = schema.outputs[0].type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == variable), ())
    return NARROW_FORMATS[to].type_string in allowed


def _makes_fp32(node: NodeProto, types: dict[str, onnx.TypeProto]) -> bool:
    kind = types.get(node.output[0])
    return kind is not None and kind.tensor_type.elem_type == TensorProto.FLOAT
