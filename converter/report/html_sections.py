"""The page without scripts, from the verdict to the worst layers; the lists behind them are in ``html_lists``."""

from __future__ import annotations

from converter.report import digest, html_lists, html_program, wording
from converter.report.columns import Column, alone, nonfinite, num, sqnr
from converter.report.html_provenance import provenance
from converter.report.html_tables import meter, named, pairs, section, status_mark, table, told
from converter.report.markup import Markup, join, name, tag
from converter.report.records import Object

WORST_LAYERS = 50

_STAMPS = {"pass": "✓ PASS", "fail": "✕ FAIL", "unchecked": "– UNCHECKED"}

_LINKS = {
    "outputs": "Outputs",
    "depth": "Error",
    "ranges": "Ranges",
    "layers": "Layers",
    "decisions": "Decisions",
    "provenance": "Provenance",
}


def content(report: Object) -> Markup:
    """Everything inside ``<body>`` but the scripts."""
    parts = (
        verdict(report),
        outputs(report),
        first_abnormal(report),
        html_program.program(report),
        html_program.modules(report),
        charts(report),
        layers(report),
        *html_lists.lists(report),
        provenance(report),
    )
    return join((topbar(report), tag("main", *parts), tag("aside", id="drawer", hidden="", tabindex=-1)))


def topbar(report: Object) -> Markup:
    status = report["verdict"]["status"]
    return tag(
        "header",
        tag("span", "narrowcast", class_="brand"),
        tag("span", status.upper(), class_=f"chip {status}"),
        tag("span", name(report["model"]["name"], 80), class_="model"),
        tag("nav", *(tag("a", title, href=f"#{anchor}") for anchor, title in _LINKS.items()), aria_label="Sections"),
        class_="topbar",
    )


# ------------------------------------------------------------------------------------------------- verdict

_REASONS = (
    Column("Broken limit at", lambda r: name(r.get("output") or r.get("layer") or "the model")),
    named("Limit", "limit"),
    num("Value", "value", wording.measured),
    num("Allowed", "allowed", wording.measured),
    told("What happened", "message"),
)


def verdict(report: Object) -> Markup:
    """The strip at the top: it has to answer everything for a reader who reads nothing else."""
    status, reasons = report["verdict"]["status"], report["verdict"]["reasons"]
    lede = tag(
        "div",
        tag("p", _STAMPS[status], class_="stamp"),
        tag("h1", name(report["model"]["name"], 120), f" to {wording.label(report['request']['to'])}"),
        tag("p", digest.diagnosis(report), class_="diagnosis"),
        tag("p", tag("b", "Tolerance "), digest.tolerance_sentence(report), class_="tolerance"),
        tag("p", tag("b", "Compared "), digest.compared_sentence(report), class_="tolerance"),
        class_="lede",
    )
    broken = table(_REASONS, reasons, "Limits that were broken") if reasons else Markup("")
    facts = pairs(_facts(report), "facts")
    return tag("section", lede, facts, broken, id="verdict", class_=f"strip {status}", aria_label="Verdict")


def _facts(report: Object) -> list[tuple[str, Markup]]:
    summary = report["summary"]
    weights = [("Narrow weights", _fact(wording.percent(_narrow_weights(report)), "of all bytes"))]
    inserted = wording.plural(summary["casts_inserted"], "cast"), wording.plural(summary["clamps_inserted"], "clamp")
    return [
        ("Worst output", _worst_output(digest.worst_output(report))),
        ("Worst layer", _worst_layer(next(iter(digest.worst_layers(report, 1)), None))),
        ("Narrow nodes", _fact(*_narrow_nodes(summary))),
        ("Narrow FLOPs", _fact(wording.percent(summary["narrow_flops_share"]), "of all")),
        *(weights if report["converted"] else []),
        ("Size", _fact(digest.size_change(summary), digest.sizes(summary))),
        ("NaN or inf", _fact(*_misplaced(report))),
        ("Inserted", _fact(*inserted)),
        ("Memory traffic", _fact(f"÷ {wording.fixed(summary['estimated_gain'], 2)}", "estimate")),
    ]


def _fact(figure: str, remark: str) -> Markup:
    return join((tag("span", figure, class_="figure"), tag("span", remark, class_="remark")))


def _worst_output(output: Object | None) -> Markup:
    if output is None:
        return _fact(wording.ABSENT, "nothing compared")
    return _worst(output["rel_l2_error"], output["allowed"]["max_rel_l2"], "allowed", output["value"])


def _worst_layer(layer: Object | None) -> Markup:
    if layer is None:
        return _fact(wording.ABSENT, "nothing compared")
    return _worst(layer["rel_l2_error"], layer["expected_rel_l2"], "expected", layer["node"] or layer["value"])


def _worst(error: float | None, limit: float | None, word: str, where: str) -> Markup:
    against = tag("small", f" of {wording.figure(limit)} {word}") if limit else Markup("")
    return _fact(join((wording.figure(error), against)), name(where, 60))


def _narrow_weights(report: Object) -> float | None:
    """Share of weight bytes stored narrow: what is saved is half of it."""
    before, after = report["model"]["weight_bytes"], (report["converted"] or {}).get("weight_bytes")
    return min(1.0, max(0.0, 2 * (1 - after / before))) if before and after is not None else None


def _narrow_nodes(summary: Object) -> tuple[str, str]:
    narrow, total = summary["narrow_nodes"], summary["float_nodes"]
    return wording.percent(narrow / total if total else None), f"{narrow:,} of {total:,}"


def _misplaced(report: Object) -> tuple[str, str]:
    """Where NaN or infinity stands that FP32 does not have."""
    in_outputs, in_layers = digest.misplaced(report["outputs"]), digest.misplaced(report["layers"])
    return wording.plural(in_outputs, "output"), wording.plural(in_layers, "layer")


# ------------------------------------------------------------------------------------------------- figures

_OUTPUTS = (
    named("Output", "value"),
    Column("Status", lambda o: status_mark(o["status"])),
    num("rel L2", "rel_l2_error", wording.figure, "‖FP32 − mixed‖ / ‖FP32‖, worst batch: the measure tolerances use"),
    Column("Allowed", lambda o: wording.figure(o["allowed"]["max_rel_l2"]), number=True),
    Column("Used", lambda o: meter(o["rel_l2_error"], o["allowed"]["max_rel_l2"]), tip="Share of the allowed error"),
    num("Expected", "expected_rel_l2", wording.figure, "What the rounding model expects"),
    Column("SQNR dB", sqnr, number=True),
    num("Cosine", "cosine_similarity", lambda value: wording.fixed(value, 6)),
    num("Max abs", "max_abs_error", wording.figure),
    num("Max rel", "max_rel_error", wording.figure),
    num("Max ULP", "max_ulp_error", wording.number),
    num("Top-1", "top1_agreement", wording.percent),
    Column("NaN/inf", nonfinite, number=True, tip="NaN or infinite in FP32 / in the mixed run / misplaced"),
    num("Differ", "mismatches", wording.count, "Elements that differ in an output of integers, booleans or strings"),
    num("Batch", "worst_batch", wording.count, "Number of the worst batch"),
    named("Type", "type"),
    Column("Shape", lambda o: wording.shape(o["shape"])),
)

_LAYERS = (
    Column("Layer", lambda layer: name(layer["node"] or layer["value"])),
    named("Operator", "op_type"),
    Column("Format", lambda layer: wording.label(layer["format"])),
    Column("Shape", lambda layer: wording.shape(layer["shape"])),
    num("rel L2", "rel_l2_error", wording.figure, "Accumulated: in the run of the whole mixed model"),
    Column("Alone", lambda layer: wording.figure(alone(layer)), number=True, tip="The node alone, on FP32 inputs"),
    num("Expected", "expected_rel_l2", wording.figure, "What the rounding model expects"),
    num("Max abs", "max_abs_error", wording.figure),
    num("Cosine", "cosine_similarity", lambda value: wording.fixed(value, 6)),
    Column("SQNR dB", sqnr, number=True),
    num("Saturated", "saturated", wording.count, "Elements at the format's largest number"),
    num("Flushed", "flushed", wording.count, "Non-zero elements that became zero"),
    Column("NaN/inf", nonfinite, number=True, tip="NaN or infinite in FP32 / in the mixed run / misplaced"),
    Column("Absmax", lambda layer: wording.number((layer["range"] or {}).get("absmax")), number=True),
    num("Headroom", "headroom_bits", wording.signed, "Bits to the format's largest number"),
    Column("Status", lambda layer: status_mark(layer["status"])),
)


def outputs(report: Object) -> Markup:
    found = report["outputs"]
    none = tag("p", "No output was compared.", class_="none")
    return section("outputs", "Outputs", table(_OUTPUTS, found, "Outputs against their limits") if found else none)


def first_abnormal(report: Object) -> Markup:
    """Where the error leaves its expectation, below the layers that feed it."""
    title, layer = "First abnormal layer", digest.first_abnormal(report)
    if layer is None:
        checked = report["verdict"]["status"] != "unchecked"
        said = "No layer exceeds the error that its rounding explains." if checked else "Nothing was compared."
        return section("first-abnormal", title, tag("p", said, class_="none"))
    sources = digest.producers(report, layer)
    remark = "last in the table, below the layers it reads from" if sources else ""
    why = tag("p", name(layer["node"] or layer["value"]), f": {digest.cause(layer)}.", class_="said")
    return section(
        "first-abnormal", title, why, table(_LAYERS, [*sources, layer], title, class_="marked-last"), remark=remark
    )


def charts(report: Object) -> Markup:
    """Empty frames; the script draws into them and without it they stay hidden."""
    total = wording.plural(len(report["layers"]), "layer")
    abnormal = f"{digest.abnormal_count(report):,} of them abnormal"
    frames = (
        ("depth", "Error along depth", f"relative L2 error of {total} in the order of execution, {abnormal}"),
        ("ranges", "Ranges against the formats", "smallest non-zero to largest magnitude in FP32, powers of two"),
    )
    return join(
        section(anchor, title, tag("div", id=f"{anchor}-chart"), remark=remark, class_="scripted")
        for anchor, title, remark in frames
    )


def layers(report: Object) -> Markup:
    """The worst layers; the script puts all of them in their place."""
    worst, total = digest.worst_layers(report, WORST_LAYERS), len(report["layers"])
    frame = tag("div", id="layer-table", class_="scripted")
    if not worst:
        return section("layers", "Layers", tag("p", "No layer was compared.", class_="none"), frame)
    title = f"The {len(worst)} worst of {wording.plural(total, 'layer')}"
    static = tag("div", tag("p", title, class_="remark"), table(_LAYERS, worst, title), class_="static")
    return section("layers", "Layers", static, frame)
