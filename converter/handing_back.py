"""Handing a PyTorch program back: the plan in the words of its graph, the mixed program, and the check against ONNX."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converter.compare.outputs import OutputRecord, compare_outputs
from converter.errors import NarrowcastError, OptionError
from converter.formats import FP32
from converter.graph import ModelIndex
from converter.isolation import run_isolated
from converter.program_facts import HandedBack, ProgramFacts
from converter.source.save import OutputFailure
from converter.tracing import BATCHES, Opened, with_converted
from converter.types import Conversion, ConversionRequest, Finding, OutputComparison, PrecisionPlan

SUFFIX = ".pt2"
PROGRAM = "program.pt2"
_FX_NODE = "pkg.torch.onnx.fx_node"
_ATTENTION = "scaled_dot_product_attention"
DEFAULT_LIMIT = 1e-2
"""Largest difference to the ONNX result where an output has no relative limit of its own."""


@dataclass(frozen=True, slots=True)
class HandBack:
    """What was asked for: the program's file, and the ONNX model's beside it."""

    pt2: Path
    onnx: Path

    @classmethod
    def asked(cls, output: str | Path | None) -> HandBack | None:
        """From an output that ends in ``.pt2``; None for any other."""
        if output is None or Path(output).suffix != SUFFIX:
            return None
        return cls(Path(output), Path(output).with_suffix(".onnx"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a conversion decided, and the converted model's outputs on the first batch (None: not run)."""

    index: ModelIndex
    plan: PrecisionPlan
    request: ConversionRequest
    first_outputs: Mapping[str, Any] | None


def conclude(
    opened: Opened, facts: ProgramFacts | None, done: Conversion, asked: HandBack | None, outcome: Outcome
) -> Conversion:
    """Add to a conversion what concerns the program it came from, and hand a mixed one back if asked.

    Raises:
        OptionError: a program was asked for and the model is ONNX.
    """
    if facts is None:
        return done
    facts = with_converted(opened, facts, outcome.first_outputs)
    files, findings = done.files, done.report.findings
    if asked is not None:
        handed = _handed_back(opened, done, asked, outcome)
        facts = replace(facts, handed_back=handed)
        if handed.status == "written":
            files = (*files, str(asked.pt2))
        else:
            findings = (*findings, Finding("not-handed-back", opened.name, f"no {asked.pt2.name}: {handed.reason}"))
    if done.model is not None:  # its weights may still lie in the trace's folder
        done.model.meta["narrowcast.trace"] = opened
    return Conversion(done.model, replace(done.report, program=facts, findings=findings), files)


def check_asked(asked: HandBack | None, opened: Opened) -> None:
    """A program can be handed back only where one was given.

    Raises:
        OptionError: naming what to do.
    """
    if asked is not None and opened.facts is None:
        raise OptionError(
            f"output '{asked.pt2.name}' asks for a PyTorch program, but the model is ONNX; give an output that ends in "
            ".onnx"
        )


def _handed_back(opened: Opened, done: Conversion, asked: HandBack, outcome: Outcome) -> HandedBack:
    """Make, check and write the mixed program, or say why not."""
    if outcome.first_outputs is None:
        return HandedBack("refused", "it cannot be checked: the converted ONNX model was not run")
    assert opened.folder is not None
    root = opened.folder.path
    if not (root / PROGRAM).exists():
        return HandedBack("refused", "the program was traced without a graph that casts could be put into")
    draft = root / "mixed.pt2"
    batch = next((root / BATCHES / "0").iterdir())
    try:
        answer = run_isolated({
            "verb": "hand_back", "folder": str(root), "program": PROGRAM, "batch": str(batch), "target": str(draft),
            "recipe": recipe(outcome),
        })  # fmt: skip
    except NarrowcastError as error:
        return HandedBack("refused", str(error))
    differences = _differences(draft.with_suffix(".npz"), outcome.first_outputs)
    reason = _too_far(differences, done.report.outputs)
    counts: dict[str, Any] = {
        "nodes": answer["nodes"],
        "narrow": answer["narrow"],
        "partly": tuple(answer["partly"]),
        "unmatched": tuple(answer["unmatched"]),
        "outputs": tuple(differences.items()),
    }
    if reason:
        return HandedBack("refused", reason, **counts)
    sha256 = _put(draft, asked.pt2)
    return HandedBack("written", "", asked.pt2.name, sha256, **counts)


def _differences(results: Path, converted: Mapping[str, Any]) -> dict[str, float]:
    """Relative L2 difference of every result to the converted ONNX model's."""
    with np.load(results, allow_pickle=False) as archive:
        got = {name: archive[str(number)] for number, name in enumerate(converted)}
    records = {name: OutputRecord(name, FP32) for name in converted}
    compare_outputs(records, converted, {n: _wide(v) for n, v in got.items()}, 0)
    found = {}
    for name, record in records.items():
        figures = record.figures
        bad = record.mismatches or (
            figures is not None and (figures.misplaced_nonfinite or figures.rel_l2_error is None)
        )
        found[name] = float("inf") if bad else (figures.rel_l2_error or 0.0) if figures else 0.0
    return found


def _wide(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype.kind == "f" else value


def _too_far(differences: Mapping[str, float], outputs: tuple[OutputComparison, ...]) -> str:
    """Why the program is not the same model as the ONNX one; empty when it is."""
    limits = {o.value: o.allowed.max_rel_l2 or DEFAULT_LIMIT for o in outputs}
    for name, gap in differences.items():
        if not gap <= limits.get(name, DEFAULT_LIMIT):
            return (
                f"result '{name}' differs from the converted ONNX model's by {gap:.3g} (relative L2), allowed "
                f"{limits.get(name, DEFAULT_LIMIT):.3g}: PyTorch's 16-bit kernels do not follow the plan there"
            )
    return ""


def _put(draft: Path, target: Path) -> str:
    """Copy a finished file to its place, whole or not at all; returns its SHA-256."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp-narrowcast")
    try:
        shutil.copyfile(draft, beside)
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OutputFailure(f"output '{target}' cannot be written: {error.strerror or error}") from error
    return hashlib.sha256(target.read_bytes()).hexdigest()


# ------------------------------------------------------------------------------------------------- the recipe


def recipe(outcome: Outcome) -> dict[str, Any]:
    """The plan by the names of the exported graph, as plain JSON values."""
    index, plan = outcome.index, outcome.plan
    narrow = outcome.request.io_types == "narrow"
    graph = index.model.graph
    return {
        "to": plan.to,
        "nodes": _formats(index, plan),
        "clamps": {name: c.bound for c in plan.clamps if (name := _result_of(index, c.value_id))},
        "limits": {index.name_of(v): limit for v, limit in plan.saturated_constants.items()},
        "narrow_inputs": [v.name for v in graph.inputs if narrow and index.is_wide(index.id_of(v))],
        "narrow_outputs": [k for k, v in enumerate(graph.outputs) if narrow and index.is_wide(index.id_of(v))],
    }


def _formats(index: ModelIndex, plan: PrecisionPlan) -> dict[str, str]:
    """Per operator: narrow, wide, or partly (several ONNX nodes that disagree); bodies speak for their owner.

    Of fused attention only the products count: its 16-bit kernels keep the softmax between them in FP32.
    """
    found: dict[str, set[str]] = {}
    for decision in plan.decisions:
        name = _operator(index, decision.node_id)
        inside = name.startswith(_ATTENTION) and decision.op_type != "MatMul"
        if name and decision.format != "none" and not inside:
            found.setdefault(name, set()).add("narrow" if decision.format == plan.to else "wide")
    return {name: next(iter(formats)) if len(formats) == 1 else "partly" for name, formats in found.items()}


def _operator(index: ModelIndex, node_id: int) -> str:
    """The operator of the main graph that a node, or the node that owns its body, came from."""
    owner = index.scopes[index.node_scope[node_id]].owner
    while owner is not None:
        node_id = owner
        owner = index.scopes[index.node_scope[node_id]].owner
    text = index.nodes[node_id].metadata_props.get(_FX_NODE, "")
    return text.partition(" ")[0].removeprefix("%")


def _result_of(index: ModelIndex, value_id: int) -> str:
    """The operator (or input) whose result a value is; empty for a value inside an operator."""
    producer = index.producer[value_id]
    if producer < 0:
        return index.name_of(value_id)
    name = _operator(index, producer)
    outside = bool(index.leaves[value_id]) or any(_operator(index, n) != name for n, _ in index.readers[value_id])
    return name if outside else ""
