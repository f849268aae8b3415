"""Errors by PyTorch module: a tree whose every row sums up the layers below it.

Independent roundings add in squares, so a module's own error is the root of the summed squares of its layers' local
errors, and its share says how much of the whole model's it makes.  Layers that were limited to the format's range
(a mask's sentinel) are no roundings and are counted as saturated instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from converter.formats import FP32
from converter.types import LayerComparison

WHOLE = ""
"""Name of the row that stands for the whole model."""

DOMINANT = 0.5
"""A module is the worst block when it makes at least this share of what its parent makes."""


@dataclass
class _Sum:
    layers: int = 0
    wide: int = 0
    squares: float = 0.0
    worst: float = -1.0
    worst_node: str = ""
    abnormal: int = 0
    saturated: int = 0
    flushed: int = 0
    misplaced: int = 0
    children: list[str] = field(default_factory=list)

    def add(self, layer: LayerComparison) -> None:
        self.layers += 1
        self.wide += layer.format == FP32.name
        self.abnormal += layer.status == "abnormal"
        local = layer.local
        if local is not None and local.rel_l2_error is not None and not local.saturated:
            self.squares += local.rel_l2_error**2
        figures = layer.accumulated
        if figures is None:
            return
        self.saturated += figures.saturated
        self.flushed += figures.flushed
        self.misplaced += figures.misplaced_nonfinite
        error = math.inf if figures.rel_l2_error is None else figures.rel_l2_error
        if error > self.worst:
            self.worst, self.worst_node = error, layer.node


def module_rows(layers: Sequence[LayerComparison]) -> list[dict[str, Any]]:
    """The tree as rows, parents before children in the order of execution; empty when no layer names a module."""
    if not any(layer.module for layer in layers):
        return []
    sums = _sums(layers)
    rows: list[dict[str, Any]] = []
    _walk(sums, WHOLE, 0, rows)
    _mark_worst(rows)
    return rows


def _sums(layers: Sequence[LayerComparison]) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = {WHOLE: _Sum()}
    for layer in layers:
        parts = layer.module.split(".") if layer.module else []
        path = [WHOLE, *(".".join(parts[: k + 1]) for k in range(len(parts)))]
        for parent, name in itertools.pairwise(path):
            if name not in sums:
                sums[name] = _Sum()
                sums[parent].children.append(name)
        for name in path:
            sums[name].add(layer)
    return sums


def _walk(sums: Mapping[str, _Sum], name: str, depth: int, rows: list[dict[str, Any]]) -> None:
    """A container that holds one module and nothing else has no row of its own."""
    found = sums[name]
    only = found.children[0] if len(found.children) == 1 else None
    if name != WHOLE and only is not None and sums[only].layers == found.layers:
        _walk(sums, only, depth, rows)
        return
    rows.append(_row(name, depth, found, sums[WHOLE].squares))
    for child in found.children:
        _walk(sums, child, depth + 1, rows)


def _row(name: str, depth: int, found: _Sum, total: float) -> dict[str, Any]:
    return {
        "module": name,
        "depth": depth,
        "layers": found.layers,
        "wide_layers": found.wide,
        "local_rel_l2": math.sqrt(found.squares),
        "share": found.squares / total if total else 0.0,
        "worst_rel_l2": found.worst if 0 <= found.worst < math.inf else None,
        "worst_layer": found.worst_node,
        "abnormal": found.abnormal,
        "saturated": found.saturated,
        "flushed": found.flushed,
        "misplaced_nonfinite": found.misplaced,
        "worst": False,
    }


def _mark_worst(rows: list[dict[str, Any]]) -> None:
    """Go down to the block that makes most of the error, as long as one child dominates its parent."""
    position = 0
    while below := _children(rows, position):
        chosen = max(below, key=lambda k: float(rows[k]["share"]))
        least = DOMINANT * rows[position]["share"] if position else 0.0
        if not rows[chosen]["share"] or rows[chosen]["share"] < least:
            break
        position = chosen
    rows[position]["worst"] = position > 0


def _children(rows: Sequence[Mapping[str, Any]], position: int) -> list[int]:
    found = []
    for k in range(position + 1, len(rows)):
        if rows[k]["depth"] <= rows[position]["depth"]:
            break
        if rows[k]["depth"] == rows[position]["depth"] + 1:
            found.append(k)
    return found
