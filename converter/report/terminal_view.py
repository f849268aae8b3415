"""The report on a terminal: readable without colour and at 80 columns.

Renderables hold ``Text`` only, never markup strings, and every model string passes ``wording.printable``: a node
name can neither colour, move nor forge a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from converter.report import digest, wording
from converter.report.columns import Column, alone, num, sqnr
from converter.report.records import Object

NAME_LIMIT = 120

_STYLES = {"pass": "bold green", "fail": "bold red", "unchecked": "bold yellow"}


def render(report: Object, worst: int = 5) -> Group:
    """Verdict, outputs, the ``worst`` layers and counts by rule, to be printed by a rich Console."""
    parts = [verdict_lines(report), outputs_table(report), layers_table(report, worst), rules_table(report)]
    return Group(*_spaced(part for part in parts if part is not None))


def _spaced(parts: Iterable[RenderableType]) -> Iterable[RenderableType]:
    for number, part in enumerate(parts):
        if number:
            yield Text()
        yield part


def verdict_lines(report: Object) -> Text:
    """PASS, FAIL or UNCHECKED, the diagnosis, every broken limit, and what the conversion gained."""
    status, summary = report["verdict"]["status"], report["summary"]
    text = Text(status.upper(), style=_STYLES[status])
    text.append(f"  {_safe(report['model']['name'])} to {wording.label(report['request']['to'])}\n", style="bold")
    text.append(f"{digest.diagnosis(report)}\n", style="")
    for reason in report["verdict"]["reasons"]:
        text.append(f"  limit broken: {_safe(digest.reason_text(reason), 400)}\n")
    for line in (digest.worst_block(report), digest.program_line(report)):
        if line:
            text.append(f"{line}\n")
    text.append(
        f"{digest.narrow_share(summary)} nodes narrow, {wording.percent(summary['narrow_flops_share'])} of the "
        f"arithmetic; {digest.saved(summary)}; {wording.plural(summary['casts_inserted'], 'cast')}, "
        f"{wording.plural(summary['clamps_inserted'], 'clamp')}"
    )
    return text


_OUTPUT_WORDS = {"within limits": "ok", "over limit": "OVER LIMIT", "unchecked": "unchecked"}

_OUTPUTS = (
    Column("output", lambda o: _safe(o["value"])),
    num("rel L2", "rel_l2_error", wording.figure),
    Column("allowed", lambda o: wording.figure(o["allowed"]["max_rel_l2"]), number=True),
    Column("SQNR dB", sqnr, number=True),
    num("NaN/inf", "misplaced_nonfinite", wording.count),
    Column("", lambda o: _OUTPUT_WORDS[o["status"]]),
)

_LAYERS = (
    Column("worst layers", lambda layer: _safe(layer["node"] or layer["value"])),
    num("rel L2", "rel_l2_error", wording.figure),
    Column("alone", lambda layer: wording.figure(alone(layer)), number=True),
    num("headroom", "headroom_bits", wording.signed),
    num("NaN/inf", "misplaced_nonfinite", wording.count),
    Column("operator", lambda layer: _layer_kind(layer)),
)

_RULES = (
    Column("decided by", lambda entry: _safe(entry["rule"])),
    num("nodes", "nodes", wording.count),
    Column("format", lambda entry: entry["format"]),
)


def outputs_table(report: Object) -> Table | None:
    return _table(_OUTPUTS, report["outputs"])


def layers_table(report: Object, worst: int) -> Table | None:
    return _table(_LAYERS, digest.worst_layers(report, worst))


def rules_table(report: Object) -> Table | None:
    return _table(_RULES, digest.rule_counts(report))


def _layer_kind(layer: Object) -> str:
    mark = " !" if layer["status"] == "abnormal" else ""
    return f"{_safe(layer['op_type'], 24)} {layer['format']}{mark}"


def _table(columns: Sequence[Column], entries: Sequence[Object]) -> Table | None:
    """Figures aligned right and whole, words that may fold; None without entries."""
    if not entries:
        return None
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        if column.number:
            table.add_column(column.title, justify="right", no_wrap=True)
        else:
            table.add_column(column.title, overflow="fold", min_width=16 if number == 0 else None)
    for entry in entries:
        table.add_row(*(Text(column.cell(entry)) for column in columns))
    return table


def _safe(text: str, limit: int = NAME_LIMIT) -> str:
    return wording.printable(text, limit)
