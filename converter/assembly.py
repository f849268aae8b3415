"""A conversion's report from its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from converter.compare.outputs import mean_interval
from converter.compare.provider import ProviderFigures
from converter.compare.run import Comparison
from converter.cost import estimated_gain, narrow_share
from converter.environment import describe
from converter.graph import ModelIndex
from converter.proof import Proof
from converter.report import build
from converter.rewrite.apply import Rewritten
from converter.run import Run
from converter.source.save import SavedModel
from converter.types import (
    ClampOutcome,
    Finding,
    LayerComparison,
    ModelFacts,
    OutputComparison,
    OutputTolerance,
    PrecisionPlan,
    Report,
    Summary,
    ValueRange,
    Verdict,
)


@dataclass(frozen=True)
class Parts:
    """What the stages of a conversion leave for its report; ``saved`` and ``proof`` are None where neither was made."""

    index: ModelIndex
    given: ModelFacts
    plan: PrecisionPlan
    ranges: Mapping[int, ValueRange]
    verdict: Verdict
    outputs: tuple[OutputComparison, ...]
    layers: tuple[LayerComparison, ...]
    flops: Mapping[int, float]
    rewritten: Rewritten
    saved: SavedModel | None
    proof: Proof | None
    provider: ProviderFigures
    findings: Sequence[Finding]


def assemble(run: Run, parts: Parts) -> Report:
    """The report of one conversion."""
    plan, proof = parts.plan, parts.proof
    return Report(
        verdict=parts.verdict,
        model=parts.given,
        converted=_converted(parts),
        request=run.request,
        environment=describe(run.threads, run.request),
        summary=_summary(parts),
        outputs=parts.outputs,
        layers=parts.layers,
        decisions=plan.decisions,
        clamps=_clamp_outcomes(plan, proof),
        constants_changed=parts.rewritten.constants_changed,
        findings=tuple(_findings(run, parts)),
        repair=proof.rounds if proof else (),
        price_list=proof.prices if proof else (),
        policy=proof.policy if proof else (),
        provider_outputs=parts.provider.outputs,
        first_abnormal=build.first_abnormal(parts.layers),
        batches=proof.compared.batches if proof else 0,
        timings=run.timings,
    )


def _findings(run: Run, parts: Parts) -> Iterator[Finding]:
    yield from run.findings
    yield from parts.findings
    if not parts.plan.narrow_nodes():
        text = f"nothing was left to convert: every node is narrow already or stays FP32 (to {parts.plan.to})"
        yield Finding("nothing-to-do", parts.given.name, text)
    if parts.saved is not None:
        yield from parts.saved.findings


def _converted(parts: Parts) -> ModelFacts | None:
    saved, rewritten = parts.saved, parts.rewritten
    if saved is None:
        return None
    return ModelFacts(
        name=Path(saved.files[0]).name,
        sha256=saved.sha256,
        opset=parts.index.opset,
        ir_version=rewritten.model.ir_version or 0,
        bytes=saved.bytes,
        weight_bytes=_weight_bytes(rewritten),
        nodes=len(rewritten.model.graph),
    )


def _summary(parts: Parts) -> Summary:
    plan, rewritten, saved = parts.plan, parts.rewritten, parts.saved
    return Summary(
        nodes=len(parts.index.nodes),
        float_nodes=sum(d.format != "none" for d in plan.decisions),
        narrow_nodes=len(plan.narrow_nodes()),
        casts=rewritten.casts,
        clamps=rewritten.clamps,
        bytes_before=parts.given.bytes,
        bytes_after=saved.bytes if saved else _weight_bytes(rewritten),
        narrow_flops_share=narrow_share(parts.flops, plan),
        search_evaluations=parts.proof.evaluations if parts.proof else 0,
        estimated_gain=estimated_gain(parts.index, plan, parts.ranges),
    )


def output_rows(
    index: ModelIndex,
    plan: PrecisionPlan,
    compared: Comparison,
    limits: Mapping[str, OutputTolerance],
    expected: Mapping[int, float],
) -> tuple[OutputComparison, ...]:
    """Every graph output with its figures, its limits and the statistics over batches."""
    rows = []
    for value in index.model.graph.outputs:
        record = compared.outputs[value.name or ""]
        value_id = index.id_of(value)
        mean, interval = mean_interval(record.errors)
        rows.append(
            OutputComparison(
                value=record.name,
                format=build.stored_format(index, plan, value_id),
                type_string=index.types[value_id] or "",
                shape=record.shape,
                figures=record.figures,
                expected_rel_l2=expected.get(value_id),
                allowed=limits[record.name],
                mismatches=record.mismatches,
                worst_batch=record.worst_batch,
                mean_rel_l2=mean,
                mean_rel_l2_interval=interval,
            )
        )
    return tuple(rows)


def _clamp_outcomes(plan: PrecisionPlan, proof: Proof | None) -> tuple[ClampOutcome, ...]:
    if proof is None:
        return build.clamp_outcomes(plan, {}, {})
    prices = {v: (p.widened_bytes, p.widened_rel_l2) for v, p in proof.clamps.items()}
    return build.clamp_outcomes(plan, proof.compared.touched, prices)


def _weight_bytes(rewritten: Rewritten) -> int:
    values = rewritten.model.graph.initializers.values()
    return sum(int(v.const_value.nbytes) for v in values if v.const_value is not None)
