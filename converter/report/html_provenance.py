"""The end of the page: what was converted, by what, and how to do it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter.report import reproduce, wording
from converter.report.columns import Column
from converter.report.html_tables import pairs, section, table
from converter.report.markup import Markup, join, name, tag
from converter.report.records import Object

_FACTS = {
    "name": "Name",
    "sha256": "SHA-256",
    "opset": "Opset",
    "ir_version": "IR version",
    "bytes": "Bytes",
    "weight_bytes": "Weight bytes",
    "nodes": "Nodes",
    "graph": "Graph",
}

_MODELS = (
    Column("", lambda entry: entry["title"]),
    Column("Given", lambda entry: _shown(entry["given"])),
    Column("Converted", lambda entry: _shown(entry["converted"])),
)


def provenance(report: Object) -> Markup:
    given, made = report["model"], report["converted"] or {}
    facts = [{"title": title, "given": given[key], "converted": made.get(key)} for key, title in _FACTS.items()]
    policy = "\n".join(reproduce.policy_lines(report))
    cards = (
        _card("Environment", report["environment"]),
        _card("Request", _request(report)),
        _card("Seconds per stage", {stage: wording.fixed(value, 3) for stage, value in report["timings"].items()}),
    )
    note = f"Report schema {report['schema_version']}. Every figure at full precision is in the JSON report."
    return section(
        "provenance",
        "Provenance",
        table(_MODELS, facts, "Models", class_="narrow models"),
        tag("h3", "Reproduce"),
        tag("pre", reproduce.command_line(report), tabindex=0),
        join((tag("h3", "POLICY.json, one object per override"), tag("pre", policy, tabindex=0))) if policy else "",
        tag("div", *cards, class_="cards"),
        tag("p", note, class_="remark"),
    )


def _request(report: Object) -> Mapping[str, Any]:
    """What was asked, with nested parts in one line each."""
    request = report["request"]
    return {
        **request,
        "profile": request["profile"]["name"],
        "tolerance": (request["tolerance"] or {}).get("name"),
        "overrides": ", ".join(override["origin"] for override in request["overrides"]),
        "dynamic": ", ".join(request["dynamic"]),
        "batches": report["batches"],
    }


def _card(title: str, record: Mapping[str, Any]) -> Markup:
    if not record:
        return Markup("")
    entries = [(key.replace("_", " "), _shown(value)) for key, value in record.items()]
    return tag("div", tag("h3", title), pairs(entries, "record"))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == "":
        return wording.ABSENT
    return f"{value:,}" if isinstance(value, int) else name(str(value))
