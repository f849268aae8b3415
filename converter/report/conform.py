"""Does a file that was read back have the shape of ``schema.json``?

Knows the few JSON Schema keywords that file uses.  Unknown keys are allowed here: a report of a later minor
version has more of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Schema = Mapping[str, Any]
Departure = tuple[str, str]
"""Where (``layers[3].range``) and what (``is missing``)."""

Check = Callable[[Any], Departure | None]

CHECKED_KEYWORDS = frozenset(
    {"$ref", "type", "enum", "minimum", "required", "properties", "patternProperties", "items", "anyOf"}
)
SILENT_KEYWORDS = frozenset({"$schema", "$id", "$defs", "title", "description", "additionalProperties", "pattern"})
"""Not checked here; the one ``pattern`` is the schema version's, which ``json_view`` looks at first."""

SHOWN = 60
"""Characters of an offending value that a message repeats."""


@cache
def report_schema() -> Schema:
    """``schema.json`` as a dict; not to be changed."""
    schema: Schema = json.loads(files("converter.report").joinpath("schema.json").read_text(encoding="utf-8"))
    return schema


def departure(value: Any, schema: Schema) -> str | None:
    """The first place where a value leaves a schema, as a sentence; None when it conforms."""
    found = _compile(schema, schema, {})(value)
    return f"{found[0].lstrip('.') or 'it'} {found[1]}" if found else None


def _compile(node: Schema, root: Schema, done: dict[str, Check]) -> Check:
    """One function for a schema node; each definition is compiled once."""
    if "$ref" in node:
        return _reference(node["$ref"], root, done)
    checks = [_values(node)]
    if "anyOf" in node:
        checks.append(_any_of([_compile(choice, root, done) for choice in node["anyOf"]]))
    if "items" in node:
        checks.append(_items(_compile(node["items"], root, done)))
    if "properties" in node or "patternProperties" in node:
        named = {name: _compile(part, root, done) for name, part in node.get("properties", {}).items()}
        matched = [(re.compile(p), _compile(part, root, done)) for p, part in node.get("patternProperties", {}).items()]
        checks.append(_members(tuple(node.get("required", ())), named, matched))
    return checks[0] if len(checks) == 1 else _all_of(checks)


def _reference(name: str, root: Schema, done: dict[str, Check]) -> Check:
    if name not in done:
        done[name] = _compile(root["$defs"][name.removeprefix("#/$defs/")], root, done)
    return done[name]


def _all_of(checks: list[Check]) -> Check:
    def check(value: Any) -> Departure | None:
        for one in checks:
            found = one(value)
            if found:
                return found
        return None

    return check


def _any_of(choices: list[Check]) -> Check:
    """The last choice speaks for a value that fits none: put null first."""

    def check(value: Any) -> Departure | None:
        found = None
        for choice in choices:
            found = choice(value)
            if not found:
                return None
        return found

    return check


def _items(item: Check) -> Check:
    def check(value: Any) -> Departure | None:
        if isinstance(value, list):
            for position, element in enumerate(value):
                found = item(element)
                if found:
                    return f"[{position}]{found[0]}", found[1]
        return None

    return check


def _members(required: tuple[str, ...], named: dict[str, Check], matched: list[tuple[re.Pattern[str], Check]]) -> Check:
    def check(value: Any) -> Departure | None:
        if not isinstance(value, dict):
            return None
        for name in required:
            if name not in value:
                return f".{name}", "is missing"
        for name, member in value.items():
            one = named.get(name) or next((c for pattern, c in matched if pattern.search(name)), None)
            found = one(member) if one else None
            if found:
                return f".{name}{found[0]}", found[1]
        return None

    return check


def _values(node: Schema) -> Check:
    """Type, enumeration and smallest number of one value."""
    wanted = node.get("type", [])
    types = frozenset(kind for name in ([wanted] if isinstance(wanted, str) else wanted) for kind in _TYPES[name])
    label = wanted if isinstance(wanted, str) else " or ".join(wanted)
    allowed, least = node.get("enum"), node.get("minimum")

    def check(value: Any) -> Departure | None:
        kind = type(value)
        if types and (kind not in types or (kind is float and not math.isfinite(value))):
            return "", f"is {_shown(value)} and should be {label}"
        if allowed is not None and value not in allowed:
            return "", f"is {_shown(value)} and should be one of {', '.join(map(str, allowed))}"
        if least is not None and kind in _TYPES["number"] and value < least:
            return "", f"is {_shown(value)}, less than {least}"
        return None

    return check


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


_TYPES: Mapping[str, frozenset[type]] = {
    "null": frozenset({type(None)}),
    "boolean": frozenset({bool}),
    "string": frozenset({str}),
    "number": frozenset({int, float}),
    "integer": frozenset({int}),
    "array": frozenset({list}),
    "object": frozenset({dict}),
}
"""The exact types that ``json.loads`` makes of each."""
