"""The layers as a table for spreadsheets and data frames (RFC 4180, UTF-8, CRLF)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from converter.report import digest, wording
from converter.report.records import CORE_FIGURES, Object

_LEADING = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""A spreadsheet may take text that begins with one of these for a formula."""

CELL_LIMIT = 32_000
"""Characters of a text cell; a spreadsheet holds 32,767, and readers refuse much longer ones."""

_NAMES = ("value", "node", "op_type", "scope", "module", "source_line", "format")
_EXPECTED = ("headroom_bits", "expected_rel_l2")
_RANGE = ("min", "max", "absmax", "absmin_nonzero", "zeros", "nan", "posinf", "neginf")

COLUMNS = (
    *_NAMES,
    "shape",
    "status",
    *CORE_FIGURES,
    *(f"local_{name}" for name in CORE_FIGURES),
    *(f"range_{name}" for name in _RANGE),
    *_EXPECTED,
    "rule",
    "reason",
)


def to_csv(report: Object) -> bytes:
    """One row per layer in the order of execution; a figure that was not measured is an empty cell."""
    decisions = digest.decisions_by_node(report)
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for layer in report["layers"]:
        writer.writerow(_row(layer, decisions.get(layer["node"], {})))
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def _row(layer: Object, decision: Mapping[str, Any]) -> list[str]:
    return [
        *(_text(layer.get(name, "")) for name in _NAMES),
        wording.shape(layer["shape"]).replace("×", "x"),
        layer["status"],
        *(_number(layer, name) for name in CORE_FIGURES),
        *(_number(layer["local"] or {}, name) for name in CORE_FIGURES),
        *(_number(layer["range"] or {}, name) for name in _RANGE),
        *(_number(layer, name) for name in _EXPECTED),
        _text(decision.get("rule", "")),
        _text(decision.get("reason", "")),
    ]


def _text(cell: str) -> str:
    """Text no spreadsheet runs.  Numbers do not pass here: their minus sign is no formula."""
    cell = wording.shortened(cell, CELL_LIMIT)
    return f"'{cell}" if cell.startswith(_LEADING) else cell


def _number(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return str(record.get(f"{name}_nonfinite", "")) if value is None else repr(value)
