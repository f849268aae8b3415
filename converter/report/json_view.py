"""The report as JSON: the contract that every other view reads (``schema.json`` describes it).

Key order is fixed, floats are written in the shortest form that reads back equal, and a number that is NaN or
infinite becomes null beside a sibling ``<name>_nonfinite``.  Long lists stand one object per line, so that
100,000 layers can be read, searched and compared line by line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converter.errors import InputError
from converter.report.conform import departure, report_schema
from converter.report.records import SCHEMA_VERSION, Object, report_object
from converter.types import Report

__all__ = ["SCHEMA_VERSION", "Object", "dump", "read_report", "report_object", "to_json"]

SHOWN_VERSION = 20
"""Characters of a foreign version that an error message repeats."""


def to_json(report: Report) -> bytes:
    """The report as UTF-8 JSON; equal reports give equal bytes."""
    return dump(report_object(report))


def dump(content: Mapping[str, Any]) -> bytes:
    """Write a report object in the canonical layout."""
    members = (f"  {_compact(key)}: {_member(value)}" for key, value in content.items())
    # A lone surrogate has no UTF-8 form; what backslashreplace writes for it is its JSON escape.
    return ("{\n" + ",\n".join(members) + "\n}\n").encode("utf-8", "backslashreplace")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _compact(value: Any) -> str:
    return _ENCODER.encode(value)


def _member(value: Any) -> str:
    """Lists one item a line; objects one key a line, nested ones indented."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_compact(item)}" for item in value) + "\n  ]"
    if isinstance(value, dict) and value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2).replace("\n", "\n  ")
    return _compact(value)


def read_report(source: str | Path | bytes) -> Object:
    """Read a report back for the views.

    Raises InputError when the file cannot be read, is no report, or has another major schema version.
    """
    name = "the report" if isinstance(source, bytes) else str(source)
    content = _parse(_load(source, name), name)
    if not isinstance(content, dict) or not isinstance(content.get("schema_version"), str):
        raise InputError(f"{name} is JSON but no narrowcast report: it has no schema_version")
    version = content["schema_version"]
    if version.split(".")[0] != SCHEMA_VERSION.split(".")[0]:
        raise InputError(
            f"{name} has report schema version {version[:SHOWN_VERSION]!r}, this narrowcast reads {SCHEMA_VERSION!r}; "
            "use the narrowcast that wrote it"
        )
    wrong = departure(content, report_schema())
    if wrong:
        raise InputError(f"{name} is no valid narrowcast report: {wrong}")
    return content


def _load(source: str | Path | bytes, name: str) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error


def _parse(text: bytes, name: str) -> Any:
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON: {error}; give a file that `narrowcast convert --report` wrote") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
