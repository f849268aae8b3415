"""The report as one HTML file: no network, opens from ``file://``, readable with scripts off.

The verdict, the outputs and the worst layers are plain HTML; the script adds the charts, the full tables and the
drawer from a compressed payload.  Nothing from the model ever becomes markup or code: ``markup`` escapes what
stands in the page, the payload is base64, the script writes text nodes only, and the content security policy
lets nothing run but this file's own script.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from string import Template

from converter.report import html_sections, wording
from converter.report.html_payload import encoded
from converter.report.markup import escape
from converter.report.records import Object

SCRIPTS = (
    "dom.js",
    "wording.js",
    "payload.js",
    "table.js",
    "filters.js",
    "scale.js",
    "charts.js",
    "columns.js",
    "drawer.js",
    "main.js",
)
"""Concatenated in this order into one function."""


def to_html(report: Object) -> bytes:
    """The whole page."""
    style, script = _style(), _script()
    title = f"{report['verdict']['status'].upper()} · {wording.printable(report['model']['name'], 60)} · narrowcast"
    page = Template(_asset("page.html")).substitute(
        policy=f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        title=escape(title),
        verdict=escape(report["verdict"]["status"]),
        style=style,
        script=script,
        content=html_sections.content(report),
        payload=encoded(report),
    )
    return page.encode("utf-8", "replace")


@cache
def _asset(name: str) -> str:
    return files("converter.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    return "\n" + _asset("page.css")


@cache
def _script() -> str:
    return '\n(() => {\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "})();\n"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
