"""Errors as node data for Model Explorer, which colours the nodes of the model's graph with them.

The file maps the graph's name to ``results`` by node name (the viewer's node id for ONNX models), and colours by
thresholds: errors span many powers of ten, where a linear gradient would show one colour.
"""

from __future__ import annotations

import json

from converter.formats import FP32, NARROW_FORMATS
from converter.report.records import Object

FALLBACK_GRAPH = "main_graph"

_COLOURS = ("#eaf2fb", "#bcd7f0", "#7fb2e0", "#f7c98b", "#e8912d", "#a84300")
"""Light blue to dark orange: told apart in lightness alone."""

_STEP = 4.0
"""Factor between two thresholds, from the format's unit roundoff on."""

_MISPLACED = {"bgColor": "#1a1a1a", "textColor": "#ffffff"}
"""NaN or infinity where FP32 has none: no error figure could say it."""


def to_model_explorer(report: Object) -> bytes:
    """Node data over ``rel_l2_error``; a node with several values shows its worst."""
    results: dict[str, Object] = {}
    for layer in report["layers"]:
        error = layer["rel_l2_error"]
        if error is None:
            continue
        key = layer["node"] or layer["value"]
        held = results.get(key, {"value": -1.0})
        shown = {"value": max(error, held["value"])}
        if layer["misplaced_nonfinite"] or "bgColor" in held:
            shown |= _MISPLACED
        results[key] = shown
    graph = report["model"]["graph"] or FALLBACK_GRAPH
    content = {graph: {"results": results, "thresholds": _thresholds(report["request"]["to"])}}
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8", "backslashreplace")


def _thresholds(to: str) -> list[Object]:
    """Upper bounds with their colours; the last one holds everything."""
    start = NARROW_FORMATS.get(to, FP32).unit_roundoff
    bounds = [start * _STEP**power for power in range(len(_COLOURS) - 1)] + [FP32.max_finite]
    return [{"value": bound, "bgColor": colour} for bound, colour in zip(bounds, _COLOURS, strict=True)]
