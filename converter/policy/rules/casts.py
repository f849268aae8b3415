"""Rule 10, the price of casts: they cross data movement to its smaller side, and under ``speed`` they must pay.

Bytes are counted as a device moves them: a cast reads one format and writes the other; a node that is narrow
instead of wide saves half of what it reads and writes.  Nothing is known without samples, and nothing is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from converter.formats import FP32
from converter.policy.context import Context
from converter.policy.legality import Refusal, is_structured
from converter.policy.rules.islands import connected
from converter.types import Evidence, OpClass


def smaller_side(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse runs of data movement between wide and narrow nodes when casting behind them moves fewer bytes."""
    exact = {n for n in narrow if _class(context, n) is OpClass.EXACT}
    for run in _runs(context, exact):
        edge = _boundary(context, run, narrow)
        before, behind = _cast_bytes(context, edge.if_narrow), _cast_bytes(context, edge.if_wide)
        if edge.touches and before > behind and len(edge.if_wide) <= len(edge.if_narrow):
            name = context.index.labels[min(run)]
            reason = f"casts behind the data movement around '{name}' move {behind:,.0f} bytes, before it {before:,.0f}"
            yield from (Refusal(n, "casts", reason, Evidence(name, before, behind)) for n in sorted(run))


def paying_casts(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Under ``--optimise speed``: refuse runs without a matrix product whose casts move more bytes than they save."""
    if context.request.optimise != "speed":
        return
    light = {n for n in narrow if _class(context, n) is not OpClass.NARROW}
    for run in _runs(context, light):
        cost = _cast_bytes(context, _boundary(context, run, narrow).if_narrow)
        saved = _saved_bytes(context, run)
        if cost > saved:
            name = context.index.labels[min(run)]
            reason = f"its casts would move {cost:,.0f} bytes and narrow arithmetic save {saved:,.0f}"
            yield from (Refusal(n, "casts", reason, Evidence(name, cost, saved)) for n in sorted(run))


def _class(context: Context, node_id: int) -> OpClass | None:
    row = context.row(node_id)
    return row.op_class if row else None


def _runs(context: Context, members: set[int]) -> Iterable[set[int]]:
    """Members connected by float edges, or by reading one value, whose cast they would share."""
    left = set(members)
    while left:
        waiting = [min(left)]
        run: set[int] = set()
        while waiting:
            node_id = waiting.pop()
            if node_id in run:
                continue
            joined = connected(context, node_id, members)
            run |= joined
            for member in joined:
                for value_id in context.narrow_inputs(member):
                    if value_id not in context.index.constants:
                        waiting += [r for r, _ in context.index.readers[value_id] if r in members and r not in run]
        left -= run
        yield run


def _elements(context: Context, value_id: int) -> float:
    seen = context.ranges.get(value_id)
    return float(math.prod(seen.shape)) if seen is not None else 0.0


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Values that need a cast if a run is narrow, if it is wide, and whether a narrow node touches it at all."""

    if_narrow: frozenset[int]
    if_wide: frozenset[int]
    touches: bool


def _boundary(context: Context, run: set[int], narrow: frozenset[int]) -> _Boundary:
    index = context.index
    if_narrow: set[int] = set()
    if_wide: set[int] = set()
    touches = False
    for node_id in run:
        for value_id in context.narrow_inputs(node_id):
            producer = index.producer[value_id]
            if value_id not in index.constants and producer not in run:
                inside = producer in narrow or (producer >= 0 and is_structured(index, producer))
                touches = touches or producer in narrow
                (if_wide if inside else if_narrow).add(value_id)
        for value_id in context.narrow_outputs(node_id):
            for reader, position in index.readers[value_id]:
                if reader in run:
                    continue
                if reader in narrow:
                    touches = True
                    if_wide.add(value_id)
                elif context.wide_ports(reader).inputs[position] == "wide":
                    if_narrow.add(value_id)
            if index.leaves[value_id]:
                if_narrow.add(value_id)
    return _Boundary(frozenset(if_narrow), frozenset(if_wide), touches)


def _cast_bytes(context: Context, values: Iterable[int]) -> float:
    return (FP32.itemsize + context.fmt.itemsize) * sum(_elements(context, v) for v in values)


def _saved_bytes(context: Context, run: set[int]) -> float:
    saved = FP32.itemsize - context.fmt.itemsize
    moved = (_elements(context, v) for n in run for v in (*context.narrow_inputs(n), *context.narrow_outputs(n)))
    return saved * sum(moved)
