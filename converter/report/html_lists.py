"""The lists of the page: decisions, clamps, changed constants, findings, repair rounds, prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from converter.report import digest, wording
from converter.report.columns import Column, num
from converter.report.html_tables import named, section, table, told
from converter.report.markup import Markup, join, name, tag
from converter.report.records import Object

LIST_LIMIT = 300
"""Entries of one list in the page; the JSON has all."""

NODES_SHOWN = 20
"""Nodes of a repair round that are named."""

_RULES = (
    named("Rule", "rule"),
    Column("Format", lambda entry: wording.label(entry["format"])),
    num("Nodes", "nodes", wording.count),
)

_CLAMPS = (
    named("Value", "value"),
    named("Node", "node"),
    named("Place", "place"),
    named("Zone", "zone"),
    num("Bound", "bound", wording.number),
    num("Absmax seen", "absmax", wording.number),
    num("Elements changed", "touched", wording.count),
    num("FP32 instead costs", "widened_bytes", wording.size),
    num("rel L2 then", "widened_rel_l2", wording.figure),
)

_CONSTANTS = (
    named("Constant", "value"),
    named("Node", "node"),
    num("Elements", "elements", wording.count),
    num("Before", "before", wording.number),
    num("After", "after", wording.number),
    told("Why", "reason"),
)

_FINDINGS = (named("Kind", "kind"), named("Where", "where"), told("Finding", "message"))

_REPAIR = (
    num("Round", "round", wording.count),
    named("Worst output", "worst_output"),
    num("rel L2 before", "error_before", wording.figure),
    num("rel L2 after", "error_after", wording.figure),
    Column("Nodes made FP32", lambda entry: _nodes(entry["widened"]), wide=True),
    told("Why", "reason"),
)

_PRICES = (
    num("FP32 nodes", "wide_nodes", wording.count),
    num("Narrow FLOPs", "narrow_flops_share", wording.percent),
    num("Cast traffic", "cast_bytes", wording.size),
    num("rel L2, worst output", "rel_l2_error", wording.figure),
    Column("Choice", lambda entry: "● chosen" if entry["chosen"] else ""),
    named("", "label"),
)

_LISTS = (
    ("clamps", "Clamps", _CLAMPS, "No clamp was inserted."),
    ("constants_changed", "Changed constants", _CONSTANTS, "Every constant is the given one, rounded to nearest."),
    ("findings", "Findings", _FINDINGS, "There are no findings."),
    ("repair", "Repair rounds", _REPAIR, "The first plan held; nothing was repaired."),
    ("price_list", "Price list", _PRICES, "There is no price list: no search was asked for."),
)
"""Key in the report, title, columns, and what to say of an empty one."""


def lists(report: Object) -> Iterator[Markup]:
    """A section for every list that has entries, then one for those that have none."""
    yield decisions(report)
    for key, title, columns, _ in _LISTS:
        if report[key]:
            yield _list(key, title, columns, report[key])
    absent = [tag("li", sentence) for key, _, _, sentence in _LISTS if not report[key]]
    if absent:
        yield section("absent", "Nothing to list", tag("ul", *absent, class_="none"))


def decisions(report: Object) -> Markup:
    """Counts by rule; the script adds the table of all nodes."""
    counts = digest.rule_counts(report)
    frame = tag("div", id="decision-table", class_="scripted")
    if not counts:
        return section("decisions", "Decisions", tag("p", "Nothing was decided.", class_="none"), frame)
    return section("decisions", "Decisions", table(_RULES, counts, "Decisions by rule", class_="narrow"), frame)


def _list(key: str, title: str, columns: Sequence[Column], entries: list[Object]) -> Markup:
    shown, total = entries[:LIST_LIMIT], len(entries)
    left_out = f"{len(shown):,} of {total:,} shown; the JSON report has all."
    rest = tag("p", left_out, class_="remark") if len(shown) < total else Markup("")
    return section(key.replace("_", "-"), title, table(columns, shown, title), rest, remark=f"{total:,}")


def _nodes(names: list[str]) -> Markup:
    shown = [tag("div", name(node, 80)) for node in names[:NODES_SHOWN]]
    more = f"and {len(names) - NODES_SHOWN:,} more" if len(names) > NODES_SHOWN else ""
    return join((*shown, more))
