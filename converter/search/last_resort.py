"""When prices do not explain a broken output: everything it depends on becomes FP32, in two steps.

Prices add up independent errors.  Several harmless roundings that together move a value across a step (a level of
a quantiser, a branch) are beyond them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from converter.graph import ModelIndex
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.search.planner import Evaluation
from converter.types import OpClass


def last_resorts(context: Context, current: Evaluation) -> list[dict[int, Refusal]]:
    """What to widen for the broken outputs: all but the matrix products they depend on, then those as well."""
    found = upstream(context.index, current.broken) & current.plan.narrow_nodes()
    products = {n for n in found if (row := context.row(n)) is not None and row.op_class is OpClass.NARROW}
    steps = [s for s in (found - products, found) if s]
    return [dict(_refusals(step, current.broken)) for step in (steps if products else steps[-1:])]


def _refusals(nodes: frozenset[int], broken: tuple[str, ...]) -> Iterator[tuple[int, Refusal]]:
    reason = f"output '{broken[0]}' depends on it and no single rounding explains why it leaves its limits"
    return ((n, Refusal(n, "repair", reason)) for n in sorted(nodes))


def upstream(index: ModelIndex, outputs: tuple[str, ...]) -> frozenset[int]:
    """Nodes that the named graph outputs depend on, bodies included."""
    graph = index.model.graph
    waiting = deque(index.id_of(v) for v in graph.outputs if v.name in outputs)
    found: set[int] = set()
    seen = set(waiting)
    while waiting:
        node_id = index.producer[waiting.popleft()]
        if node_id < 0 or node_id in found:
            continue
        found.add(node_id)
        leaves = [index.id_of(v) for b in index.bodies.get(node_id, {}).values() for v in index.scopes[b].graph.outputs]
        new = [v for v in (*index.inputs[node_id], *leaves) if v >= 0 and v not in seen]
        seen.update(new)
        waiting.extend(new)
    return frozenset(found)
