"""A short summary for a pull request (GitHub's Markdown)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from converter.report import digest, wording
from converter.report.columns import Column, alone, num, sqnr
from converter.report.records import Object

WORST_LAYERS = 10
NAME_LIMIT = 80

_MARKS = {"pass": "✅ pass", "fail": "❌ fail", "unchecked": "⚪ unchecked"}


def to_markdown(report: Object) -> bytes:
    """Verdict, outputs, the worst layers, and decisions counted by rule."""
    parts = [_heading(report), *_tables(report), _foot(report)]
    return ("\n\n".join(part for part in parts if part) + "\n").encode("utf-8", "replace")


def code(text: str) -> str:
    """Model text as a code span: it can neither end the span, nor the table cell, nor mention anyone."""
    shown = wording.printable(text, NAME_LIMIT)
    if not shown:
        return wording.ABSENT
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def prose(text: str) -> str:
    """Text of ours that quotes model text: what Markdown could read is escaped, links and mentions are broken."""
    escaped = re.sub(r"([\\`*_{}\[\]<>()#+!|~&@])", r"\\\1", wording.printable(text, 400))
    return escaped.replace("://", ":\u200b//").replace("\\@", "@\u200b").replace("www.", "www\u200b.")


def _heading(report: Object) -> str:
    summary = report["summary"]
    return "\n".join(
        (
            f"### {_MARKS[report['verdict']['status']]}: {code(report['model']['name'])} to "
            f"{wording.label(report['request']['to'])}",
            "",
            prose(digest.diagnosis(report)),
            "",
            f"{digest.narrow_share(summary)} nodes narrow · {wording.percent(summary['narrow_flops_share'])} of the "
            f"arithmetic · {digest.saved(summary)} · {wording.plural(summary['casts_inserted'], 'cast')} · "
            f"{wording.plural(summary['clamps_inserted'], 'clamp')}",
        )
    )


_REASONS = (
    Column("where", lambda r: code(r.get("output") or r.get("layer") or "")),
    Column("limit", lambda r: prose(r["limit"])),
    num("value", "value", wording.measured),
    num("allowed", "allowed", wording.measured),
    Column("", lambda r: prose(r["message"])),
)

_OUTPUTS = (
    Column("output", lambda o: code(o["value"])),
    Column("", lambda o: o["status"]),
    num("rel. L2", "rel_l2_error", wording.figure),
    Column("allowed", lambda o: wording.figure(o["allowed"]["max_rel_l2"]), number=True),
    Column("SQNR dB", sqnr, number=True),
    num("max abs", "max_abs_error", wording.figure),
    num("misplaced NaN/inf", "misplaced_nonfinite", wording.count),
)

_LAYERS = (
    Column("layer", lambda layer: code(layer["node"] or layer["value"])),
    Column("operator", lambda layer: f"{code(layer['op_type'])} {wording.label(layer['format'])}"),
    num("rel. L2", "rel_l2_error", wording.figure),
    Column("alone", lambda layer: wording.figure(alone(layer)), number=True),
    num("expected", "expected_rel_l2", wording.figure),
    num("headroom, bits", "headroom_bits", wording.signed),
    Column("", lambda layer: layer["status"]),
)

_MODULES = (
    Column("module", lambda row: code(row["module"])),
    num("layers", "layers", wording.count),
    num("own rounding", "local_rel_l2", wording.figure),
    num("share", "share", wording.percent),
    Column("worst rel. L2", lambda row: wording.figure(row["worst_rel_l2"]), number=True),
    Column("", lambda row: "worst block" if row["worst"] else ""),
)

_PROGRAM = (
    Column("result", lambda o: code(o["name"])),
    num("trace rel. L2", "trace_rel_l2", wording.figure),
    num("converted rel. L2", "converted_rel_l2", wording.figure),
)

_RULES = (
    Column("rule", lambda entry: prose(entry["rule"])),
    Column("format", lambda entry: wording.label(entry["format"])),
    num("nodes", "nodes", wording.count),
)


def _tables(report: Object) -> list[str]:
    worst = digest.worst_layers(report, WORST_LAYERS)
    return [
        _table("Broken limits", _REASONS, report["verdict"]["reasons"]),
        _table("Outputs", _OUTPUTS, report["outputs"]),
        _table(f"The {len(worst)} worst of {wording.plural(len(report['layers']), 'layer')}", _LAYERS, worst),
        _table("Modules by rounding error", _MODULES, digest.worst_modules(report, WORST_LAYERS)),
        _table("Against the PyTorch program", _PROGRAM, (report["program"] or {}).get("outputs", [])),
        _table("Decisions", _RULES, digest.rule_counts(report)),
    ]


def _table(title: str, columns: Sequence[Column], entries: Sequence[Object]) -> str:
    """A titled table; nothing at all without entries."""
    if not entries:
        return ""
    head = " | ".join(column.title for column in columns)
    rule = " | ".join("---:" if column.number else "---" for column in columns)
    rows = [f"| {' | '.join(column.cell(entry) for column in columns)} |" for entry in entries]
    return "\n".join((f"**{title}**", "", f"| {head} |", f"| {rule} |", *rows))


def _foot(report: Object) -> str:
    environment = report["environment"]
    return (
        f"<sub>narrowcast {prose(environment['narrowcast'])} · ran on {prose(environment['ran'])} · "
        f"tolerance {prose(digest.tolerance_sentence(report))}</sub>"
    )
