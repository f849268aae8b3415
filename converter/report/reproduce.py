"""The command line that makes a report again, from what the report says was asked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from converter.report import wording
from converter.report.records import Object
from converter.types import ConversionRequest

_DEFAULTS = ConversionRequest()

WORD_LIMIT = 1000
"""Characters of a name or pattern; a longer one loses its middle and has to be looked up in the JSON."""

_CHOICES = ("io_types", "overflow", "optimise", "max_rel_l2", "min_sqnr_db", "target", "provider", "metrics", "seed")
"""Options that are spelled like the request's fields and take one word."""


def command_line(report: Object) -> str:
    """A ``narrowcast convert`` command; files are named, not located, and batches are numbered."""
    return " ".join(shlex.quote(word) for word in _words(report))


def policy_lines(report: Object) -> list[str]:
    """Overrides that came from a policy file, one JSON object each."""
    kept = [o for o in report["request"]["overrides"] if not _is_keep(o)]
    return [json.dumps({key: text for key, text in o.items() if text and key != "origin"}) for o in kept]


def _words(report: Object) -> Iterator[str]:
    request = report["request"]
    yield from ("narrowcast", "convert", _file(report["model"]["name"]) or "MODEL.onnx")
    for number in range(report["batches"]):
        yield from ("--samples", f"BATCH{number + 1 if report['batches'] > 1 else ''}.npz")
    yield from ("--to", _shown(request["to"]))
    for name in _CHOICES:
        value = request[name]
        if value is not None and value != getattr(_DEFAULTS, name):
            yield from (f"--{name.replace('_', '-')}", _shown(value))
    yield from _list_words(request)
    yield from _switches(request)


def _list_words(request: Object) -> Iterator[str]:
    for override in request["overrides"]:
        if _is_keep(override):
            yield from ("--keep-fp32", _shown(override["origin"]))
    if any(not _is_keep(override) for override in request["overrides"]):
        yield from ("--policy", "POLICY.json")
    for axis in request["dynamic"]:
        yield from ("--dynamic", _shown(axis))


def _switches(request: Object) -> Iterator[str]:
    tolerance = request["tolerance"]
    if tolerance and tolerance["name"] != f"{request['to']}-default":
        yield from ("--tolerance", _file(tolerance["name"]))
    if request["profile"]["name"] != _DEFAULTS.profile.name:
        yield from ("--emulate", _file(request["profile"]["name"]))
    if request["search"]:
        yield "--search"
    if not request["repair"]:
        yield "--no-repair"
    if not request["validate"]:
        yield "--no-validate"


def _is_keep(override: Object) -> bool:
    """Whether ``--keep-fp32`` says the same: one pattern, over node names or operator types, kept FP32."""
    patterns = [override[key] for key in ("node", "value", "op_type", "inputs_from", "feeds") if override[key]]
    return override["format"] == "fp32" and patterns == [override["origin"]]


def _file(name: str) -> str:
    """The last part of a path, whichever system wrote it."""
    return _shown(name.replace("\\", "/").rsplit("/", 1)[-1])


def _shown(value: Any) -> str:
    return wording.printable(str(value), WORD_LIMIT)
