"""``validate``: any two models of the same interface, compared layer by layer on sample batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from converter.assembly import output_rows
from converter.compare.expected import expected_errors, explained_errors
from converter.compare.lockstep import SideBySide
from converter.compare.outputs import OutputRecord, compare_outputs
from converter.compare.run import Comparison
from converter.compare.tolerances import allowed_for, named_tolerance
from converter.compare.verdict import judge
from converter.conversion import exact_nodes
from converter.cost import narrow_share, node_flops
from converter.environment import describe
from converter.errors import ModelError, OptionError
from converter.formats import NARROW_FORMATS
from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.policy.context import Context
from converter.ranges.batches import Batches, Source
from converter.ranges.constants import measure_constant, survey_constants
from converter.ranges.observe import observe
from converter.report import build
from converter.request import check_words
from converter.run import Progress, Run, catalog, listed, quiet
from converter.runtime.formatting import declared_formats
from converter.runtime.interpreter import Interpreter
from converter.runtime.session import Threads
from converter.source.onnx_file import load
from converter.types import (
    ConversionRequest,
    Decision,
    Finding,
    PrecisionPlan,
    Report,
    Summary,
    ValueRange,
    VerdictReason,
)


def validate(
    reference: str | Path | onnx.ModelProto,
    candidate: str | Path | onnx.ModelProto,
    samples: Sequence[Source] | Source | None,
    request: ConversionRequest | None = None,
    *,
    progress: Progress = quiet,
    threads: Threads | None = None,
    breadcrumb: Callable[[str], None] | None = None,
    **options: Any,
) -> Report:
    """Compare a candidate model with a reference on sample batches; values are paired by name.

    The candidate is run emulated: its FP16 and BF16 values are rounded where its types say so.

    Raises:
        InputError: a model or batch is wrong, or the two have different inputs or outputs.
    """
    if samples is None:
        raise OptionError("no sample batch was given; pass --samples FILE.npz")
    run = Run(replace(request or ConversionRequest(), **options), progress, threads or Threads(), breadcrumb)
    check_words(run.request)
    with run.stage("load"):
        known = catalog()
        given, other = load(reference, known), load(candidate, known)
        _check_interfaces(given.index, other.index)
        batches = Batches(listed(samples), given.index)
    request = _with_tolerance(run.request, other.index)
    run.request = request
    left, right = (run.interpreter(index) for index in (given.index, other.index))
    with run.stage("observe", len(batches)) as done:
        ranges = observe(left, batches, done)
    spec = declared_formats(other.index, "candidate")
    context = Context(other.index, request, {}, measure_constant, survey_constants)
    expected = expected_errors(other.index, spec, _never_rounding(context))
    limits = {
        v.name or "": allowed_for(v.name or "", expected.get(other.index.id_of(v)), _tolerance(request), request)
        for v in other.index.model.graph.outputs
    }
    with run.stage("compare", len(batches)) as done:
        compared, seen_shapes = _compare(left, right, batches, done)
    with run.stage("judge"):
        plan = _as_plan(other.index, request.to)
        outputs = output_rows(other.index, plan, compared, limits, expected)
        verdict = judge(outputs, compared.failures)
    explained = explained_errors(other.index, spec, _never_rounding(context), compared.accumulated)
    evidence = _by_candidate_value(given.index, other.index, compared, ranges, explained)
    layers = build.layer_rows(other.index, plan, evidence)
    flops = node_flops(other.index, {}, seen_shapes)
    narrow = plan.narrow_nodes()
    return Report(
        verdict=verdict,
        model=given.facts,
        converted=other.facts,
        request=request,
        environment=describe(run.threads, request),
        summary=Summary(
            nodes=len(other.index.nodes),
            float_nodes=sum(d.format != "none" for d in plan.decisions),
            narrow_nodes=len(narrow),
            casts=sum(n.op_type == "Cast" for n in other.index.nodes),
            clamps=sum(n.op_type == "Clip" and "narrowcast.zone" in n.metadata_props for n in other.index.nodes),
            bytes_before=given.facts.bytes,
            bytes_after=other.facts.bytes,
            narrow_flops_share=narrow_share(flops, plan),
            search_evaluations=0,
            estimated_gain=1.0,
        ),
        outputs=outputs,
        layers=layers,
        decisions=plan.decisions,
        clamps=(),
        constants_changed=(),
        findings=(*given.findings, *other.findings, *left.findings, *right.findings, *_unpaired(given.index, layers)),
        first_abnormal=build.first_abnormal(layers),
        batches=len(batches),
        timings=run.timings,
    )


def _with_tolerance(request: ConversionRequest, candidate: ModelIndex) -> ConversionRequest:
    """The request with the format the candidate really uses, and that format's tolerance unless one was given."""
    found = {fmt.name for fmt in declared_formats(candidate).stored if fmt is not None}
    to = request.to if request.to in found or not found else sorted(found)[0]
    return replace(request, to=to, tolerance=request.tolerance or named_tolerance(None, to))


def _tolerance(request: ConversionRequest) -> Any:
    assert request.tolerance is not None
    return request.tolerance


def _check_interfaces(reference: ModelIndex, candidate: ModelIndex) -> None:
    for what in ("inputs", "outputs"):
        have = [v.name for v in getattr(candidate.model.graph, what)]
        want = [v.name for v in getattr(reference.model.graph, what)]
        if have != want:
            raise ModelError(f"the candidate's {what} are {have}, the reference's {want}; they must be the same")


def _compare(
    left: Interpreter, right: Interpreter, batches: Batches, progress: Callable[[int], None]
) -> tuple[Comparison, Mapping[int, tuple[int, ...]]]:
    """Both models side by side; the shapes of what the candidate made by its value ids."""
    side = SideBySide(left, right)
    spec = declared_formats(right.index)
    records = {
        v.name or "": OutputRecord(v.name or "", spec.stored[right.index.id_of(v)])
        for v in right.index.model.graph.outputs
    }
    failures: list[VerdictReason] = []
    for number, batch in enumerate(batches):
        expected, mixed, failure = side.run(batch.feeds, batch.feeds)
        compare_outputs(records, expected, mixed, number)
        if failure is not None and not failures:
            text = f"the candidate fails at node '{failure[0]}' in batch {number}: {failure[1]}"
            failures.append(VerdictReason("runs", None, None, layer=failure[0], message=text))
        progress(number + 1)
    ids = {right.index.name_of(v): v for v in range(len(right.index.values))}
    figures = {ids[name]: f for name, f in side.worst.items()}
    shapes = {ids[name]: s for name, s in side.shapes.items()}
    return Comparison(records, figures, {}, shapes, {}, failures, [], len(batches)), side.candidate_shapes


def _as_plan(index: ModelIndex, to: str) -> PrecisionPlan:
    """What the candidate's own types say, in the shape of a plan."""
    narrow = {f.type_string for f in NARROW_FORMATS.values()}
    decisions = []
    for node_id, node in enumerate(index.nodes):
        kinds = {index.types[v] for v in (*index.inputs[node_id], *index.outputs[node_id]) if v >= 0}
        outputs = {index.types[v] for v in index.outputs[node_id] if v >= 0}
        chosen = "none"
        if any(index.is_float(v) for v in (*index.inputs[node_id], *index.outputs[node_id])):
            chosen = to if (outputs & narrow) or (kinds & narrow and "tensor(float)" not in kinds) else "fp32"
        if canonical_domain(node.domain) == "" and node.op_type in ("Constant", "If", "Loop", "Scan"):
            chosen = "none"
        rule = node.metadata_props.get("narrowcast.rule", "as given")
        decisions.append(
            Decision(node_id, index.labels[node_id], node.op_type, chosen, rule, "the candidate's own types")
        )
    return PrecisionPlan(to, tuple(decisions), {}, {}, {}, (), ())


def _never_rounding(context: Context) -> frozenset[int]:
    """Nodes that never round; a Cast to a narrow type does."""
    index = context.index
    casts = {
        n
        for n, node in enumerate(index.nodes)
        if node.op_type == "Cast" and index.outputs[n] and index.is_float(index.outputs[n][0])
    }
    return exact_nodes(context) - casts


def _by_candidate_value(
    reference: ModelIndex,
    candidate: ModelIndex,
    compared: Comparison,
    ranges: Mapping[int, ValueRange],
    expected: Mapping[int, float],
) -> build.LayerEvidence:
    ids = {candidate.name_of(v): v for v in range(len(candidate.values))}
    seen = {ids[name]: r for v, r in ranges.items() if (name := reference.name_of(v)) in ids}
    return build.LayerEvidence(compared.accumulated, {}, seen, compared.shapes, expected)


def _unpaired(reference: ModelIndex, layers: Sequence[Any]) -> list[Finding]:
    names = {layer.value for layer in layers}
    missing = [
        reference.name_of(v)
        for outputs in reference.outputs
        for v in outputs
        if v >= 0 and reference.is_float(v) and v not in reference.constants and reference.name_of(v) not in names
    ]
    if not missing:
        return []
    text = f"{len(missing)} values of the reference have no value of that name in the candidate, first '{missing[0]}'"
    return [Finding("unpaired", missing[0], text)]
