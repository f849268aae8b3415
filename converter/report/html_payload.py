"""The layers and decisions as the page's script reads them: rows without keys, figures to five digits.

Packed because it has to be: 5,000 layers stay below 2 MB.  The JSON report is the place for full precision.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

from converter.formats import NARROW_FORMATS, FloatFormat
from converter.report import digest, wording
from converter.report.records import CORE_FIGURES, Object

NAME_LIMIT = 1000
"""Characters of a name that reach the page; a longer one loses its middle."""

DIGITS = 5
COSINE_DECIMALS = 9
"""What matters of a cosine is how far it is from 1."""

FIGURES = (*CORE_FIGURES, "count", "absmax", "worst_row_rel_l2", "top1_agreement", "equal", "zero_reference")
RANGE = ("min", "max", "absmax", "absmin_nonzero", "count", "zeros", "nan", "posinf", "neginf", "integral")
LAYER = (
    "value",
    "node",
    "op_type",
    "format",
    "shape",
    "status",
    "scope",
    "source",
    "headroom_bits",
    "expected_rel_l2",
    "inputs",
    "figures",
    "local",
    "range",
    "exponents",
)
DECISION = ("node", "op_type", "format", "rule", "reason", "evidence")


def encoded(report: Object) -> str:
    """The payload as base64 of zlib-compressed JSON: no character of it means anything to an HTML parser."""
    text = json.dumps(payload(report), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"), 9)).decode("ascii")


def payload(report: Object) -> Object:
    layers = report["layers"]
    known = digest.places(report)
    broken = digest.reasons_by(report, "layer")
    worst, first = digest.worst_output(report), digest.first_abnormal(report)
    return {
        "to": report["request"]["to"],
        "formats": [_format(limits) for limits in NARROW_FORMATS.values()],
        "limit": _limit(worst),
        "first": next((number for number, layer in enumerate(layers) if layer is first), None),
        "fields": {"layer": LAYER, "figures": FIGURES, "range": RANGE, "decision": DECISION},
        "layers": [_layer(layer, known, broken) for layer in layers],
        "decisions": [_decision(decision) for decision in report["decisions"]],
    }


def _format(limits: FloatFormat) -> Object:
    return {
        "name": limits.name,
        "label": limits.label,
        "max": limits.max_finite,
        "normal": limits.smallest_normal,
        "subnormal": limits.smallest_subnormal,
    }


def _limit(output: Object | None) -> Object | None:
    """What the worst output is allowed, for a line in the chart."""
    if output is None or not output["allowed"]["max_rel_l2"]:
        return None
    return {"output": _name(output["value"]), "allowed": _short(output["allowed"]["max_rel_l2"])}


def _layer(layer: Object, known: digest.Places, broken: Mapping[str, Any]) -> list[Any]:
    over = layer["value"] in broken or layer["node"] in broken
    scope = layer.get("scope", "")
    local, seen = layer["local"], layer["range"]
    return [
        _name(layer["value"]),
        _name(layer["node"]),
        _name(layer["op_type"]),
        layer["format"],
        wording.shape(layer["shape"]),
        "over limit" if over else layer["status"],
        _name(scope),
        _name(digest.source_of(layer)),
        _numbers(layer, ("headroom_bits",))[0],
        _numbers(layer, ("expected_rel_l2",))[0],
        [_input(name, scope, known) for name in layer.get("inputs", [])],
        _numbers(layer, FIGURES),
        _numbers(local, FIGURES) if local else None,
        _numbers(seen, RANGE) if seen else None,
        _shares(seen["exponents"]) if seen and seen["exponents"] else None,
    ]


def _input(name: str, scope: str, known: digest.Places) -> int | str:
    """The row of a value; its name if it has none."""
    number = digest.place_of(name, scope, known)
    return _name(name) if number is None else number


def _decision(decision: Object) -> list[Any]:
    evidence = decision["evidence"]
    return [
        _name(decision["node"]),
        _name(decision["op_type"]),
        decision["format"],
        _name(decision["rule"]),
        _name(decision["reason"]),
        [_name(evidence["value"]), *_numbers(evidence, ("number", "limit"))] if evidence else None,
    ]


def _numbers(record: Mapping[str, Any], names: tuple[str, ...]) -> list[Any]:
    """Figures in order; a non-finite one is its name (``inf``)."""
    found = ((name, record.get(name)) for name in names)
    return [record.get(f"{name}_nonfinite") if value is None else _short(value, name) for name, value in found]


def _short(value: Any, name: str = "") -> Any:
    if not isinstance(value, float):
        return value
    return round(value, COSINE_DECIMALS) if name == "cosine_similarity" else float(f"{value:.{DIGITS}g}")


def _shares(exponents: Object) -> list[int]:
    """Lowest exponent, then per mille of each bin; what is there is never 0."""
    total = sum(exponents["counts"])
    return [exponents["lowest"], *(max(1, round(1000 * c / total)) if c else 0 for c in exponents["counts"])]


def _name(text: str) -> str:
    """Characters as they are: the script makes them printable where it shows them."""
    return wording.shortened(text, NAME_LIMIT)
