"""``inspect``: what a model holds, what would be converted and why, and which format suits it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx

from converter.formats import BF16, FP16, NARROW_FORMATS, FloatFormat
from converter.graph import ModelIndex
from converter.policy.context import Context
from converter.policy.decide import decide
from converter.ranges.batches import Batches, Source
from converter.ranges.constants import measure_constant, survey_constants
from converter.ranges.merge import headroom_bits, overflow_share, share_below
from converter.ranges.observe import observe
from converter.request import check_words
from converter.run import Progress, Run, catalog, listed, quiet
from converter.runtime.interpreter import Interpreter
from converter.runtime.session import Threads
from converter.tracing import open_model
from converter.types import ConversionRequest, PrecisionPlan, ValueRange

_BARS = "▁▂▃▄▅▆▇█"
HISTOGRAM_WIDTH = 16
"""Characters of a text histogram; each stands for one or more binary exponents."""

_RANGE_RULES = frozenset(("overflow", "underflow", "constants", "hidden range"))


def inspect(
    model: str | Path | onnx.ModelProto | Any,
    samples: Sequence[Source] | Source | None = None,
    request: ConversionRequest | None = None,
    *,
    progress: Progress = quiet,
    threads: Threads | None = None,
    breadcrumb: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Everything that can be said about a model without converting it, as plain JSON values.

    With samples: the range of every float value against both narrow formats, and a recommendation.
    """
    run = Run(request or ConversionRequest(), progress, threads or Threads(), breadcrumb)
    check_words(run.request)
    with run.stage("load"):
        opened = open_model(model, samples, run.request, False, run.threads.count)
        loaded = opened.load(catalog())
        batches = None if opened.samples is None else Batches(listed(opened.samples), loaded.index)
    ranges: dict[int, ValueRange] = {}
    if batches is not None:
        interpreter = Interpreter(loaded.index, run.threads, breadcrumb=breadcrumb)
        with run.stage("observe", len(batches)) as done:
            ranges = observe(interpreter, batches, done)
    with run.stage("decide"):
        plans = {name: _plan(loaded.index, run.request, ranges, name) for name in NARROW_FORMATS}
    plan = plans[run.request.to]
    return {
        "model": asdict(loaded.facts),
        "to": run.request.to,
        "findings": [asdict(f) for f in loaded.findings],
        "operators": dict(sorted(Counter(n.op_type for n in loaded.index.nodes).items())),
        "formats": dict(Counter(d.format for d in plan.decisions)),
        "decisions": [asdict(d) for d in plan.decisions if d.format != "none"],
        "clamps": [asdict(c) for c in plan.clamps],
        "values": [_value(loaded.index, value_id, seen) for value_id, seen in sorted(ranges.items())],
        "recommendation": _recommend(plans, ranges),
    }


def _plan(index: ModelIndex, request: ConversionRequest, ranges: Mapping[int, ValueRange], to: str) -> PrecisionPlan:
    return decide(Context(index, replace(request, to=to), ranges, measure_constant, survey_constants))


def _value(index: ModelIndex, value_id: int, seen: ValueRange) -> dict[str, Any]:
    producer = index.producer[value_id]
    return {
        "value": index.name_of(value_id),
        "node": index.labels[producer] if producer >= 0 else "",
        "op_type": index.nodes[producer].op_type if producer >= 0 else "",
        "shape": list(seen.shape),
        "minimum": seen.minimum,
        "maximum": seen.maximum,
        "nonfinite": seen.nonfinite,
        "headroom_bits": {f.name: headroom_bits(seen, f) for f in (FP16, BF16)},
        "flushed_share": {f.name: share_below(seen, f.smallest_subnormal / 2) for f in (FP16, BF16)},
        "saturated_share": {f.name: overflow_share(seen, f) for f in (FP16, BF16)},
        "histogram": histogram(seen),
    }


def histogram(seen: ValueRange) -> dict[str, Any]:
    """Binary exponents as a line of bars (log scale); ``low``/``high`` are the exponents it spans."""
    bins = [k for k, count in enumerate(seen.exponents[:-1]) if count]
    if not bins:
        return {"low": None, "high": None, "bars": ""}
    low, high = bins[0], bins[-1]
    width = max(1, math.ceil((high - low + 1) / HISTOGRAM_WIDTH))
    sums = [sum(seen.exponents[k : k + width]) for k in range(low, high + 1, width)]
    top = math.log1p(max(sums))
    bars = "".join(" " if not s else _BARS[min(7, int(8 * math.log1p(s) / top))] for s in sums)
    return {"low": low - _BIAS, "high": high - _BIAS, "bars": bars}


_BIAS = 127


def _recommend(plans: Mapping[str, PrecisionPlan], ranges: Mapping[int, ValueRange]) -> dict[str, str]:
    """FP16, BF16 or mixed, with the numbers behind it."""
    if not ranges:
        return {"format": "unknown", "reason": "without samples nothing is known about ranges; pass --samples"}
    beyond = _beyond(ranges, FP16)
    kept = {name: _kept_by_range(plan) for name, plan in plans.items()}
    total = len(ranges)
    if not beyond and kept["fp16"] <= kept["bf16"]:
        return {
            "format": "fp16",
            "reason": f"all {total} values fit FP16's range, and its {FP16.mantissa_bits} mantissa bits round eight "
            f"times finer than BF16's {BF16.mantissa_bits}",
        }
    if beyond > 0.05 * total or kept["fp16"] > 0.25 * max(1, len(plans["fp16"].narrow_nodes())):
        return {
            "format": "bf16",
            "reason": f"{beyond} of {total} values pass FP16's maximum of {FP16.max_finite:g} and {kept['fp16']} nodes "
            f"would stay FP32 for their range; BF16 has FP32's range (and {BF16.mantissa_bits} mantissa bits)",
        }
    wide = sum(d.format == "fp32" for d in plans["fp16"].decisions)
    return {
        "format": "mixed",
        "reason": f"FP16 with {wide} nodes kept FP32, {kept['fp16']} of them for their range: {beyond} of {total} "
        f"values pass its maximum of {FP16.max_finite:g}, the rest fits",
    }


def _beyond(ranges: Mapping[int, ValueRange], fmt: FloatFormat) -> int:
    return sum(seen.absmax > fmt.max_finite for seen in ranges.values())


def _kept_by_range(plan: PrecisionPlan) -> int:
    return sum(d.format == "fp32" and d.rule in _RANGE_RULES for d in plan.decisions)
