"""Rule 10, no islands: nothing is cast down and up again between two wide nodes.

Graph inputs, outputs and constants (and operators that make a value from no float) hold nothing back: a node
stays FP32 only when it stands between wide nodes on both sides and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.policy.context import Context
from converter.policy.legality import Refusal, is_structured
from converter.types import OpClass


def islands(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse runs of data movement, and single following nodes, that stand between wide nodes."""
    left = set(narrow)
    while True:
        found = [*_movement(context, left), *_following(context, left)]
        if not found:
            return
        yield from found
        left -= {r.node_id for r in found}


def _class(context: Context, node_id: int) -> OpClass | None:
    row = context.row(node_id)
    return row.op_class if row else None


def _movement(context: Context, narrow: set[int]) -> list[Refusal]:
    """Connected runs of EXACT nodes whose surroundings are wide."""
    exact = {n for n in narrow if _class(context, n) is OpClass.EXACT}
    found: list[Refusal] = []
    done: set[int] = set()
    for start in sorted(exact):
        if start in done:
            continue
        run = connected(context, start, exact)
        done |= run
        if _surrounded(context, run, narrow):
            reason = "moves or selects values between FP32 nodes only; narrowing here would cast down and up again"
            found += [Refusal(n, "islands", reason) for n in sorted(run)]
    return found


def _following(context: Context, narrow: set[int]) -> list[Refusal]:
    reason = "all its neighbours are FP32 nodes; narrowing it alone would cast down and up again"
    return [
        Refusal(n, "islands", reason)
        for n in sorted(narrow)
        if _class(context, n) is OpClass.FOLLOW and _surrounded(context, {n}, narrow)
    ]


def connected(context: Context, start: int, members: set[int]) -> set[int]:
    """The members that a node is connected to through float edges between members."""
    run, waiting = {start}, [start]
    while waiting:
        node_id = waiting.pop()
        for other in (*context.float_producers(node_id), *context.float_consumers(node_id)):
            if other in members and other not in run:
                run.add(other)
                waiting.append(other)
    return run


def _surrounded(context: Context, run: set[int], narrow: set[int]) -> bool:
    """Whether wide nodes feed and read a run, and nothing narrow or outside touches it."""
    fed = read = False
    for node_id in run:
        for value_id in context.narrow_inputs(node_id):
            side = _source_side(context, value_id, run, narrow)
            if side == "free":
                return False
            fed = fed or side == "wide"
        for value_id in context.narrow_outputs(node_id):
            for side in _reader_sides(context, value_id, run, narrow):
                if side == "free":
                    return False
                read = read or side == "wide"
    return fed and read


def _source_side(context: Context, value_id: int, run: set[int], narrow: set[int]) -> str:
    """``inside`` the run, ``none`` (constants and the like), ``wide`` or ``free``."""
    index = context.index
    if value_id in index.constants:
        return "none"
    producer = index.producer[value_id]
    if producer in run:
        return "inside"
    if producer < 0 or producer in narrow or is_structured(index, producer):
        return "free"
    computes = any(index.is_wide(v) and v not in index.constants for v in index.inputs[producer])
    return "wide" if computes else "none"


def _reader_sides(context: Context, value_id: int, run: set[int], narrow: set[int]) -> Iterable[str]:
    index = context.index
    if index.leaves[value_id]:
        yield "free"
    for node_id, position in index.readers[value_id]:
        if node_id in run:
            continue
        if node_id in narrow or is_structured(index, node_id):
            yield "free"
        elif context.wide_ports(node_id).inputs[position] == "wide":
            yield "wide"
