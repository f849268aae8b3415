"""A ``Report`` as nested dicts and lists: which record becomes which keys, and in which order."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from typing import Any

from converter.program_facts import ProgramFacts
from converter.report.modules import module_rows
from converter.types import (
    ClampOutcome,
    Decision,
    ErrorFigures,
    LayerComparison,
    OutputComparison,
    PolicyOverride,
    Report,
    Summary,
    Tolerance,
    ValueRange,
    Verdict,
    VerdictReason,
)

SCHEMA_VERSION = "1.0"
"""Major part: breaks readers.  Minor part: adds keys."""

Object = dict[str, Any]

EXPONENT_BIAS = 127
"""Of FP32: bin ``b`` of a histogram counts magnitudes from ``2**(b - 127)`` up to twice that."""

CORE_FIGURES = (
    "rel_l2_error",
    "max_abs_error",
    "max_rel_error",
    "max_ulp_error",
    "cosine_similarity",
    "sqnr_db",
    "reference_nonfinite",
    "value_nonfinite",
    "misplaced_nonfinite",
    "saturated",
    "flushed",
)
FULL_FIGURES = frozenset({"max_rel_error", "max_ulp_error", "max_rel_left_out", "worst_row_rel_l2", "top1_agreement"})
"""Null unless the full metrics were asked for."""

MORE_FIGURES = ("count", "absmax", "equal", "zero_reference", "max_rel_left_out", "worst_row_rel_l2", "top1_agreement")


_ALL_FIGURES = CORE_FIGURES + MORE_FIGURES
_NO_FIGURES = dict.fromkeys(_ALL_FIGURES)


def report_object(report: Report) -> Object:
    """The report as dicts, lists, strings, booleans and finite numbers, in the order of the contract."""
    return {
        "schema_version": SCHEMA_VERSION,
        "verdict": _verdict(report.verdict),
        "model": plain(report.model),
        "converted": plain(report.converted),
        "request": {**plain(report.request), "tolerance": _tolerance(report.request.tolerance)},
        "environment": plain(report.environment),
        "summary": _summary(report.summary),
        "outputs": _outputs(report),
        "layers": [_layer(layer) for layer in report.layers],
        "decisions": [_decision(decision) for decision in report.decisions],
        "clamps": [_clamp(outcome) for outcome in report.clamps],
        "constants_changed": plain(report.constants_changed),
        "findings": plain(report.findings),
        "repair": plain(report.repair),
        "price_list": plain(report.price_list),
        "policy": {"rules": [_rule(override) for override in report.policy]},
        "provider_outputs": plain(report.provider_outputs),
        "modules": [numbered(row) for row in module_rows(report.layers)],
        "program": _program(report.program),
        "first_abnormal": report.first_abnormal or None,
        "batches": report.batches,
        "timings": plain(report.timings),
    }


def _rule(override: PolicyOverride) -> dict[str, Any]:
    """One line of a policy file: only what it matches by."""
    found = {name: value for name, value in plain(override).items() if value is not None and name != "origin"}
    return {key: found[key] for key in ("node", "value", "op_type", "inputs_from", "feeds", "format") if key in found}


def _program(facts: ProgramFacts | None) -> Object | None:
    """The traced program; its notes stand among the findings."""
    if facts is None:
        return None
    found: Object = plain(dataclasses.replace(facts, notes=(), handed_back=None))
    del found["notes"]
    handed = facts.handed_back
    if handed is not None:
        outputs = [numbered({"name": name, "rel_l2": gap}) for name, gap in handed.outputs]
        found["handed_back"] = {**plain(dataclasses.replace(handed, outputs=())), "outputs": outputs}
    return found


_PLAIN = frozenset({type(None), str, bool, int, float})
"""Already as JSON has them.  Exact types: a NumPy float is an instance of float too."""


def plain(value: Any) -> Any:
    """Records to dicts, tuples to lists, NumPy's scalars to Python's; see ``numbered`` for NaN and infinities."""
    if type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value):
        return numbered({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return numbered(dict(value))
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value.item()


def numbered(record: Mapping[str, Any]) -> Object:
    """A record in plain form whose NaN and infinite numbers are null beside ``<name>_nonfinite``."""
    done: Object = {}
    for name, value in record.items():
        found = done[name] = plain(value)
        if type(found) is float and not math.isfinite(found):
            done[name], done[f"{name}_nonfinite"] = None, str(found)
    return done


def _verdict(verdict: Verdict) -> Object:
    return {"status": verdict.status, "reasons": [_reason(reason) for reason in verdict.reasons]}


def _reason(reason: VerdictReason) -> Object:
    where = {key: name for key, name in (("output", reason.output), ("layer", reason.layer)) if name}
    return {
        **numbered({"limit": reason.limit, "value": reason.value, "allowed": reason.allowed}),
        **where,
        "message": reason.message,
    }


def _tolerance(tolerance: Tolerance | None) -> Object | None:
    """Limits of single outputs become objects that name their pattern."""
    if tolerance is None:
        return None
    outputs = [{"output": pattern, **plain(limits)} for pattern, limits in tolerance.outputs]
    return {**plain(dataclasses.replace(tolerance, outputs=())), "outputs": outputs}


def _summary(summary: Summary) -> Object:
    renamed = {"casts": "casts_inserted", "clamps": "clamps_inserted"}
    return {renamed.get(name, name): value for name, value in plain(summary).items()}


def _outputs(report: Report) -> list[Object]:
    producers = {layer.value: layer for layer in reversed(report.layers) if not layer.scope}
    broken = {reason.output for reason in report.verdict.reasons}
    found = []
    for output in report.outputs:
        status = "over limit" if output.value in broken else "within limits"
        if report.verdict.status == "unchecked":
            status = "unchecked"
        found.append(_output(output, producers.get(output.value), status))
    return found


def _output(output: OutputComparison, layer: LayerComparison | None, status: str) -> Object:
    """An output, with what is known of it as a layer; ``layer`` is None for one that no node makes."""
    interval = output.mean_rel_l2_interval
    return {
        "value": output.value,
        "node": layer.node if layer else "",
        "op_type": layer.op_type if layer else "",
        "format": output.format,
        "type": output.type_string,
        "shape": plain(output.shape),
        **_figures(output.figures),
        "range": _range(layer.observed if layer else None),
        **numbered({"headroom_bits": layer.headroom_bits if layer else None}),
        **numbered({"expected_rel_l2": output.expected_rel_l2}),
        "status": status,
        "allowed": plain(output.allowed),
        "mismatches": plain(output.mismatches),
        "worst_batch": plain(output.worst_batch),
        **numbered({"mean_rel_l2": output.mean_rel_l2}),
        "mean_rel_l2_interval": numbered({"low": interval[0], "high": interval[1]}) if interval else None,
        "local": _local(layer),
    }


def _layer(layer: LayerComparison) -> Object:
    extras = {"scope": layer.scope, "module": layer.module, "source_line": layer.source_line, "inputs": layer.inputs}
    return {
        "value": layer.value,
        "node": layer.node,
        "op_type": layer.op_type,
        "format": layer.format,
        "shape": plain(layer.shape),
        **_figures(layer.accumulated),
        "range": _range(layer.observed),
        **numbered({"headroom_bits": layer.headroom_bits, "expected_rel_l2": layer.expected_rel_l2}),
        "status": layer.status,
        "local": _local(layer),
        **{name: plain(value) for name, value in extras.items() if value},
    }


def _figures(figures: ErrorFigures | None) -> Object:
    """All figures of the contract; null where nothing was compared or the figure was not asked for."""
    if figures is None:
        return dict(_NO_FIGURES)
    return numbered({name: getattr(figures, name) for name in _ALL_FIGURES})


def _local(layer: LayerComparison | None) -> Object | None:
    """The local figures; those of the full set only when they were asked for, to keep 100,000 layers small."""
    if layer is None or layer.local is None:
        return None
    found = _figures(layer.local)
    return {name: value for name, value in found.items() if value is not None or name not in FULL_FIGURES}


def _range(seen: ValueRange | None) -> Object | None:
    if seen is None:
        return None
    record = {
        "min": seen.minimum,
        "max": seen.maximum,
        "absmax": seen.absmax,
        "absmin_nonzero": seen.absmin_nonzero,
        "count": seen.count,
        "zeros": seen.zeros,
        "nan": seen.nan_count,
        "posinf": seen.posinf_count,
        "neginf": seen.neginf_count,
        "integral": seen.integral,
    }
    return {**numbered(record), "exponents": _exponents(seen.exponents)}


def _exponents(counts: tuple[int, ...]) -> Object | None:
    """The histogram without its empty ends: ``counts[i]`` magnitudes lie in ``[2**(lowest + i), twice that)``."""
    filled = [number for number, count in enumerate(counts) if count]
    if not filled:
        return None
    return {"lowest": filled[0] - EXPONENT_BIAS, "counts": plain(counts[filled[0] : filled[-1] + 1])}


def _decision(decision: Decision) -> Object:
    return {
        "node": decision.node,
        "op_type": decision.op_type,
        "format": decision.format,
        "rule": decision.rule,
        "evidence": plain(decision.evidence),
        "reason": decision.reason,
    }


def _clamp(outcome: ClampOutcome) -> Object:
    site = outcome.site
    return {
        "value": site.value,
        "node": site.node,
        "place": site.place,
        "zone": site.zone,
        **numbered({"bound": site.bound, "absmax": site.absmax}),
        "touched": plain(outcome.touched),
        **numbered({"widened_bytes": outcome.widened_bytes, "widened_rel_l2": outcome.widened_rel_l2}),
    }
