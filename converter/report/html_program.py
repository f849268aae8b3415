"""Two sections for models that were PyTorch programs: how the program was traced, and errors by module."""

from __future__ import annotations

from converter.report import digest, wording
from converter.report.columns import Column, num
from converter.report.html_tables import meter, named, pairs, section, table
from converter.report.markup import Markup, join, name, tag
from converter.report.records import Object

INDENT = "\u2003"
ROWS_SHOWN = 400

_MODULES = (
    Column("Module", lambda row: join((INDENT * row["depth"], name(row["module"] or "the whole model")))),
    num("Layers", "layers", wording.count),
    num("FP32", "wide_layers", wording.count, "Layers stored in FP32"),
    num("Own rounding", "local_rel_l2", wording.figure, "Root of the summed squares of the layers' own errors"),
    Column("Share", lambda row: meter(row["share"], 1.0), tip="Of the whole model's rounding, in squares"),
    Column("Worst rel L2", lambda row: wording.figure(row["worst_rel_l2"]), number=True, tip="Accumulated, any layer"),
    named("At", "worst_layer"),
    num("Abnormal", "abnormal", wording.count),
    num("Saturated", "saturated", wording.count),
    num("Flushed", "flushed", wording.count),
    num("NaN/inf", "misplaced_nonfinite", wording.count),
    Column("", lambda row: "▲ worst block" if row["worst"] else ""),
)

_INPUTS = (
    named("Input", "name"),
    named("Argument", "argument"),
    named("Type", "type"),
    Column("Shape", lambda entry: "×".join(str(size) for size in entry["shape"])),
    named("Fixed at", "fixed"),
)

_OUTPUTS = (
    named("Output", "name"),
    named("Result", "result"),
    num("Trace, rel L2", "trace_rel_l2", wording.figure, "The FP32 ONNX graph against what PyTorch returned"),
    num("Converted, rel L2", "converted_rel_l2", wording.figure, "The converted graph against PyTorch, first batch"),
    num("Differ", "mismatches", wording.count, "Integers and booleans of the trace that differ"),
)


def modules(report: Object) -> Markup:
    """The tree of modules; nothing without one."""
    rows = report["modules"]
    if not rows:
        return Markup("")
    shown = table(_MODULES, rows[:ROWS_SHOWN], "Errors by module")
    rest = f"{ROWS_SHOWN:,} of {len(rows):,} modules shown; the JSON report has all." if len(rows) > ROWS_SHOWN else ""
    said = tag("p", digest.worst_block(report), class_="said")
    return section("modules", "Modules", said, shown, tag("p", rest, class_="remark") if rest else Markup(""))


def program(report: Object) -> Markup:
    """How the program was traced; nothing for a model that was ONNX already."""
    facts = report["program"]
    if facts is None:
        return Markup("")
    stated = {
        "Program": f"{facts['module']} ({facts['kind']})",
        "Traced by": f"{facts['exporter']}, PyTorch {facts['torch']}, opset {facts['opset']}",
        "Mode": facts["mode"],
        "Open axes": ", ".join(facts["dynamic"]) or "none",
        "Trace check": digest.trace_sentence(facts),
        "Handed back": digest.handed_back_sentence(facts),
    }
    entries = [(title, name(text, 400)) for title, text in stated.items() if text]
    return section(
        "program",
        "Program",
        pairs(entries, "record"),
        table(_OUTPUTS, facts["outputs"], "Results of the program"),
        table(_INPUTS, facts["inputs"], "Arguments of the program"),
    )
