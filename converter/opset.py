"""One decision per model: whether, and how far, the operator set is raised so that BF16 becomes legal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from converter.errors import ModelError
from converter.formats import NARROW_FORMATS, FloatFormat
from converter.graph import ModelIndex, index_model
from converter.numerics.error_sums import ErrorSums
from converter.numerics.exact import differing, is_measured
from converter.policy.legality import Refusal, first_opset_for, is_structured, narrow_ports
from converter.policy.lookup import policy_for
from converter.policy.rules.provenance import was_decided
from converter.rewrite.adapters import CannotAdapt
from converter.rewrite.raise_opset import raise_opset
from converter.runtime.formatting import declared_formats
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import StepKind
from converter.source.final_check import checker_problem
from converter.source.onnx_file import LoadedModel
from converter.source.type_propagation import propagate_types
from converter.types import Finding, OpClass

MAX_CHANGE = 1e-6
"""Largest relative L2 change of an FP32 output that raising the operator set may cause."""

MAX_TRIED = 4
"""How many operator sets are tried, the most useful first."""

Feeds = Callable[[], Iterable[Mapping[str, Any]]]
Make = Callable[[ModelIndex], Interpreter]


@dataclass(frozen=True, slots=True)
class Raised:
    """The model to go on with, and what to tell about it."""

    loaded: LoadedModel
    findings: tuple[Finding, ...]


def raise_if_needed(
    loaded: LoadedModel,
    reload: Callable[[], LoadedModel],
    to: str,
    feeds: Feeds | None,
    make: Make,
) -> Raised:
    """Raise the operator set to the smallest that makes every wanted node legal and still runs.

    ``reload`` reads the model again (an attempt that fails leaves a useless one), ``make`` builds an interpreter
    for an index.  Without ``feeds`` only steps are taken that leave every node's text as it is.
    """
    index = loaded.index
    wanted = _wanted_versions(index, NARROW_FORMATS[to])
    reasons: list[str] = []
    for version in sorted(wanted, reverse=True)[:MAX_TRIED]:
        attempt = reload()
        problem = _attempt(index, attempt, version, feeds, make)
        if problem is None:
            nodes = sum(count for v, count in wanted.items() if v <= version)
            text = (
                f"opset {index.opset} was raised to {version}, the smallest at which {nodes} nodes may be "
                f"{NARROW_FORMATS[to].label}; FP32 outputs changed by at most {MAX_CHANGE:g} (relative L2)"
            )
            return Raised(attempt, (Finding("raised-opset", attempt.facts.name, text),))
        reasons.append(f"opset {version}: {problem}")
    if not reasons:
        return Raised(loaded, ())
    text = f"opset {index.opset} was not raised, so nodes that need more stay FP32 ({'; '.join(reasons)})"
    return Raised(reload(), (Finding("opset-kept", loaded.facts.name, text),))


def _wanted_versions(index: ModelIndex, fmt: FloatFormat) -> dict[int, int]:
    """Opset -> number of nodes the table would narrow that first become legal there."""
    found: dict[int, int] = {}
    for node_id, node in enumerate(index.nodes):
        row = policy_for(node.domain, node.op_type, index.version(node.domain))
        settled = is_structured(index, node_id) or was_decided(node)
        if row is None or row.op_class is OpClass.WIDE or settled:
            continue
        refusal = narrow_ports(index, node_id, row, fmt)
        if isinstance(refusal, Refusal) and refusal.rule == "legality":
            version = first_opset_for(index, node_id, fmt)
            if version is not None:
                found[version] = found.get(version, 0) + 1
    return found


def _attempt(
    index: ModelIndex,
    attempt: LoadedModel,
    version: int,
    feeds: Feeds | None,
    make: Make,
) -> str | None:
    """Raise, type and run the attempt; the problem in words, or None when it is as good as before."""
    try:
        adapted = raise_opset(attempt.index.model, version, index.catalog)
    except CannotAdapt as error:
        return str(error)
    if adapted and feeds is None:
        return "nodes had to be adapted, which cannot be checked without samples"
    attempt.findings += propagate_types(attempt.index.model, index.catalog)
    attempt.index = index_model(attempt.index.model, index.catalog)
    complaint = checker_problem(attempt.index.model)
    if complaint is not None and checker_problem(index.model) is None:
        return f"onnx.checker refuses the model there: {complaint}"
    after = make(attempt.index)
    missing = _missing_kernels(index, after, make)
    if missing is not None or feeds is None:
        return missing
    return _changed(make(index), after, feeds)


def _missing_kernels(index: ModelIndex, after: Interpreter, make: Make) -> str | None:
    """The first node that makes no session at the new opset but did at the old one."""
    before: dict[str, bool] | None = None
    for scope in after.program.scopes:
        for step in scope:
            if step.kind in _WALKED or after.runner.has_kernel(step):
                continue
            if before is None:
                old = make(index)
                before = {s.label: old.runner.has_kernel(s) for steps in old.program.scopes for s in steps}
            if before.get(step.label, True):
                return f"ONNX Runtime has no kernel for node '{step.label}' ({step.op_type}) there"
    return None


_WALKED = frozenset((StepKind.IF, StepKind.LOOP, StepKind.SCAN, StepKind.SEQUENCE_MAP, StepKind.STRUCTURE))


def _changed(before: Interpreter, after: Interpreter, feeds: Feeds) -> str | None:
    """The first FP32 output that changed by more than MAX_CHANGE."""
    for batch in feeds():
        try:
            old = before.run(batch, [declared_formats(before.index)]).outputs[0]
            new = after.run(batch, [declared_formats(after.index)]).outputs[0]
        except ModelError as error:
            return str(error)
        assert old is not None
        assert new is not None
        for name, expected in old.items():
            change = _change(expected, new[name])
            if change > MAX_CHANGE:
                return f"FP32 output '{name}' changed by {change:.2g} (relative L2), allowed {MAX_CHANGE:g}"
    return None


def _change(expected: Any, got: Any) -> float:
    """Relative L2 change of an output; infinite where shapes, integers or non-finite elements differ."""
    if isinstance(expected, list):
        pairs = zip(expected, got, strict=True) if len(expected) == len(got) else [(0, float("nan"))]
        return max((_change(a, b) for a, b in pairs), default=0.0)
    shape = getattr(expected, "shape", None)
    if shape is None:
        return 0.0
    if shape != getattr(got, "shape", None):
        return float("inf")
    if not is_measured(expected):
        return float("inf") if differing(expected, got) else 0.0
    sums = ErrorSums()
    sums.add(expected, got)
    figures = sums.figures()
    return float("inf") if figures.misplaced_nonfinite else figures.rel_l2_error or 0.0
