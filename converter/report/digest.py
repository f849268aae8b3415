"""What a reader wants to know first, worked out from a report that was read back.

Every view takes its sentences, orders and counts from here, so that they cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from converter.formats import NARROW_FORMATS
from converter.report import wording
from converter.report.records import Object

INHERITED_SHARE = 0.5
"""A layer whose own rounding makes less than this share of its error has most of it from its inputs."""

FLUSHED_SHARE = 0.01
"""Share of flushed elements from which underflow is named as the cause."""

NAME_LIMIT = 80
"""Characters of a name inside a sentence."""

SENTENCE_LIMIT = 600


def worst_output(report: Object) -> Object | None:
    """The output that uses most of what it is allowed; misplaced non-finite elements come first."""
    compared = [output for output in report["outputs"] if output["count"] is not None]
    return max(compared, key=_output_rank, default=None)


def _output_rank(output: Object) -> tuple[bool, float, float]:
    error, allowed = output["rel_l2_error"] or 0.0, output["allowed"]["max_rel_l2"]
    return bool(output["misplaced_nonfinite"]), error / allowed if allowed else 0.0, error


def worst_layers(report: Object, limit: int) -> list[Object]:
    """Layers by accumulated error, those with misplaced non-finite elements first; layers without figures left out."""
    compared = [layer for layer in report["layers"] if layer["count"] is not None]
    compared.sort(key=lambda layer: (not layer["misplaced_nonfinite"], -(layer["rel_l2_error"] or 0.0)))
    return compared[:limit]


def reasons_by(report: Object, key: str) -> dict[str, list[Object]]:
    """Broken limits by the output or by the layer they name (``key``)."""
    found: dict[str, list[Object]] = {}
    for reason in report["verdict"]["reasons"]:
        if reason.get(key):
            found.setdefault(reason[key], []).append(reason)
    return found


def reason_text(reason: Object) -> str:
    """What a broken limit says, or its numbers when it says nothing."""
    value, allowed = wording.of(reason, "value", wording.measured), wording.of(reason, "allowed", wording.measured)
    numbers = f"{reason['limit']} is {value}, allowed {allowed}"
    return str(reason["message"] or numbers)


def first_abnormal(report: Object) -> Object | None:
    """The layer where the error leaves its expectation; the report names its value or its node."""
    name = report["first_abnormal"]
    layers = report["layers"]
    by_value = next((layer for layer in layers if name and layer["value"] == name), None)
    return by_value or next((layer for layer in layers if name and layer["node"] == name), None)


Places = Mapping[tuple[str, str], int]
"""Number of a layer by the path of its body and the name of its value."""


def places(report: Object) -> Places:
    return {(layer.get("scope", ""), layer["value"]): number for number, layer in enumerate(report["layers"])}


def place_of(value: str, scope: str, known: Places) -> int | None:
    """The layer that makes a value, looked for in the reader's own body and then outwards."""
    while (scope, value) not in known:
        if not scope:
            return None
        outer = scope.rstrip("/").rpartition("/")[0]
        scope = f"{outer}/" if outer else ""
    return known[scope, value]


def producers(report: Object, layer: Object) -> list[Object]:
    """The layers whose values a layer reads."""
    known = places(report)
    found = (place_of(name, layer.get("scope", ""), known) for name in dict.fromkeys(layer.get("inputs", [])))
    return [report["layers"][number] for number in found if number is not None]


def decisions_by_node(report: Object) -> dict[str, Object]:
    """Decision by node name."""
    return {decision["node"]: decision for decision in report["decisions"]}


def rule_counts(report: Object) -> list[Object]:
    """How many ``nodes`` got which ``format`` by which ``rule``, most frequent first."""
    counts = Counter((decision["rule"], decision["format"]) for decision in report["decisions"])
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"rule": rule, "format": form, "nodes": amount} for (rule, form), amount in ordered]


def abnormal_count(report: Object) -> int:
    return sum(layer["status"] == "abnormal" for layer in report["layers"])


def misplaced(entries: Iterable[Object]) -> int:
    """Entries that hold a NaN or infinity where FP32 has none, or the other way round."""
    return sum(bool(entry["misplaced_nonfinite"]) for entry in entries)


# ----------------------------------------------------------------------------------------------- sentences


def diagnosis(report: Object) -> str:
    """One printable sentence: is it good, and if not, where does the error start and why."""
    return wording.printable(_diagnosis(report), SENTENCE_LIMIT)


def _diagnosis(report: Object) -> str:
    status = report["verdict"]["status"]
    if status == "unchecked":
        return "Nothing was compared: the model was converted without validation."
    layer = first_abnormal(report)
    if status == "fail" and layer:
        return f"Error starts at {_name(layer)} ({layer['op_type']}, {wording.label(layer['format'])}): {cause(layer)}."
    if status == "fail":
        reasons = report["verdict"]["reasons"]
        return reason_text(reasons[0]) if reasons else "A limit was broken."
    return _passed(report, layer)


def _passed(report: Object, layer: Object | None) -> str:
    worst = worst_output(report)
    if worst is None:
        return "No output could be compared; no limit was broken."
    name = wording.printable(worst["value"], NAME_LIMIT)
    shown = f"Every output is within its limits; the worst, {name}, has a relative L2 error of "
    shown += wording.figure(worst["rel_l2_error"])
    if worst["allowed"]["max_rel_l2"]:
        shown += f" of {wording.figure(worst['allowed']['max_rel_l2'])} allowed"
    if layer:
        shown += f". First layer beyond its expectation: {_name(layer)} ({cause(layer)})"
    return shown + "."


def _name(entry: Object) -> str:
    return wording.printable(entry["node"] or entry["value"], NAME_LIMIT)


def cause(layer: Object) -> str:
    """Why a layer is off: range, underflow, its own rounding, or what it was given."""
    return _range_cause(layer) or _rounding_cause(layer)


def _range_cause(layer: Object) -> str:
    limits = NARROW_FORMATS.get(layer["format"])
    reach = (layer["range"] or {}).get("absmax") or 0.0
    if limits and reach > limits.max_finite:
        return f"its range reaches {wording.number(reach)}, {limits.label} ends at {wording.number(limits.max_finite)}"
    if layer["misplaced_nonfinite"]:
        where = wording.plural(layer["misplaced_nonfinite"], "element is", "elements are")
        return f"{where} NaN or infinite on one side only"
    if layer["saturated"]:
        return f"{wording.plural(layer['saturated'], 'element')} saturated"
    if layer["flushed"] and layer["flushed"] >= FLUSHED_SHARE * (layer["count"] or 1):
        return f"{wording.plural(layer['flushed'], 'element')} flushed to zero"
    return ""


def _rounding_cause(layer: Object) -> str:
    error, local = layer["rel_l2_error"], (layer["local"] or {}).get("rel_l2_error")
    reached = f"relative L2 error {wording.figure(error)}"
    if layer["expected_rel_l2"]:
        reached += f", expected {wording.figure(layer['expected_rel_l2'])}"
    if error is None or local is None:
        return reached
    if local < INHERITED_SHARE * error:
        return f"{reached}; alone it makes {wording.figure(local)}, the rest comes from its inputs"
    return f"{reached}; its own rounding makes {wording.figure(local)}"


def tolerance_sentence(report: Object) -> str:
    """Which limits applied and where they come from."""
    request = report["request"]
    parts = []
    if request["max_rel_l2"] is not None:
        parts.append(f"relative L2 error of at most {wording.figure(request['max_rel_l2'])} per output, as asked")
    if request["min_sqnr_db"] is not None:
        parts.append(f"SQNR of at least {wording.fixed(request['min_sqnr_db'], 1, ' dB')}, as asked")
    tolerance = request["tolerance"]
    if tolerance is not None:
        parts.append(_tolerance_text(tolerance))
    return "; ".join(parts) or f"{request['to']}-default"


def _tolerance_text(tolerance: Object) -> str:
    text = (
        f"{wording.printable(tolerance['name'], NAME_LIMIT)}: {wording.number(tolerance['factor'])} times the expected "
        f"rounding error, held between {wording.figure(tolerance['floor'])} and {wording.figure(tolerance['ceiling'])}"
    )
    named = len(tolerance["outputs"])
    return f"{text}; own limits for {wording.plural(named, 'output pattern')}" if named else text


def compared_sentence(report: Object) -> str:
    """On what the mixed model ran, over how many batches."""
    if report["verdict"]["status"] == "unchecked":
        return "not at all"
    ran = wording.printable(report["environment"]["ran"], NAME_LIMIT)
    return f"by {ran} over {wording.plural(report['batches'], 'batch', 'batches')}, with FP32 as the reference"


def saved(summary: Object) -> str:
    """Size before, after, and the difference."""
    return f"{sizes(summary)} ({size_change(summary)})"


def sizes(summary: Object) -> str:
    return f"{wording.size(summary['bytes_before'])} → {wording.size(summary['bytes_after'])}"


def size_change(summary: Object) -> str:
    before, after = summary["bytes_before"], summary["bytes_after"]
    return f"{100 * (after - before) / before:+.1f} %" if before else wording.ABSENT


def narrow_share(summary: Object) -> str:
    total = summary["float_nodes"]
    share = f" ({wording.percent(summary['narrow_nodes'] / total)})" if total else ""
    return f"{summary['narrow_nodes']:,} of {total:,}{share}"


def source_of(entry: Any) -> str:
    """Module path and source line of a layer, where the model came from a program."""
    return "  ".join(text for text in (entry.get("module", ""), entry.get("source_line", "")) if text)


def worst_modules(report: Object, limit: int) -> list[Object]:
    """Modules below the whole model by their share of the rounding error."""
    return sorted(report["modules"][1:], key=lambda row: -row["share"])[:limit]


def worst_block(report: Object) -> str:
    """Which module makes most of the rounding error; empty when no layer names a module."""
    worst = next((row for row in report["modules"] if row["worst"]), None)
    if worst is None:
        return ""
    return (
        f"{wording.printable(worst['module'], NAME_LIMIT)} makes {wording.percent(worst['share'])} of the rounding "
        f"error ({wording.plural(worst['layers'], 'layer')}, {wording.figure(worst['local_rel_l2'])} of its own)"
    )


def program_line(report: Object) -> str:
    """How the program was traced and what was handed back, in one line; empty for a model that was ONNX already."""
    facts = report["program"]
    if facts is None:
        return ""
    handed = handed_back_sentence(facts)
    traced = f"traced from {facts['kind']} by {facts['exporter']}; {trace_sentence(facts)}"
    return wording.printable(traced + (f"; {handed}" if handed else ""), SENTENCE_LIMIT)


def trace_sentence(facts: Object) -> str:
    """How well the ONNX graph fits the program before any cast."""
    if facts["trace_tolerance"] is None:
        return "not done"
    worst = max((output["trace_rel_l2"] or 0.0 for output in facts["outputs"]), default=0.0)
    return (
        f"the FP32 graph differs from PyTorch by at most {wording.figure(worst)} (relative L2), allowed "
        f"{wording.figure(facts['trace_tolerance'])}"
    )


def handed_back_sentence(facts: Object) -> str:
    """What became of the mixed program that was asked for; empty when none was."""
    handed = facts["handed_back"]
    if handed is None:
        return ""
    name = wording.printable(handed["name"], NAME_LIMIT)
    if handed["status"] != "written":
        return f"refused: {wording.printable(handed['reason'], SENTENCE_LIMIT)}"
    worst = max((output["rel_l2"] or 0.0 for output in handed["outputs"]), default=0.0)
    left = [
        wording.plural(len(handed["partly"]), "operator stays FP32", "operators stay FP32")
        + " (its ONNX nodes disagree)"
        if handed["partly"]
        else "",
        f"{len(handed['unmatched'])} without ONNX node follow their inputs" if handed["unmatched"] else "",
    ]
    more = "".join(f"; {text}" for text in left if text)
    return (
        f"{name}: {handed['narrow']:,} of {handed['nodes']:,} operators narrow{more}; differs from the ONNX result by "
        f"at most {wording.figure(worst)}"
    )
