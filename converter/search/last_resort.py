"""What prices cannot explain: several harmless roundings that together move a value across a step.

A step is a level of a quantiser, an integer, an index, a branch.  What lies in front of steps can become FP32
alone; where that is not enough, everything that a broken output depends on does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.search.planner import Evaluation
from converter.types import OpClass

EXPLAINED = 0.25
"""A price list that predicts less than this share of the squared error does not know where it comes from."""

_STEPS = frozenset(
    (
        "QuantizeLinear", "DynamicQuantizeLinear", "Floor", "Ceil", "Round", "Sign", "Mod", "ArgMax", "ArgMin", "TopK",
        "Hardmax", "Unique", "NonMaxSuppression", "NonZero", "Equal", "Greater", "GreaterOrEqual", "Less",
        "LessOrEqual", "ThresholdedRelu", "Shrink", "If", "Loop", "IsInf", "IsNaN",
    )
)  # fmt: skip


def before_steps(context: Context, current: Evaluation) -> dict[int, Refusal]:
    """The narrow nodes in front of steps that the broken outputs depend on."""
    index = context.index
    steps = [n for n in upstream(index, _values(index, current.broken)) if _is_step(index, n)]
    found = upstream(index, [v for n in steps for v in index.inputs[n]])
    reason = "roundings here together move a value across a step that a broken output depends on"
    return _refusals(found & current.plan.narrow_nodes(), reason)


def _is_step(index: ModelIndex, node_id: int) -> bool:
    node = index.nodes[node_id]
    if canonical_domain(node.domain) != "":
        return False
    from_float = any(index.is_wide(v) for v in index.inputs[node_id])
    to_integer = node.op_type in ("Cast", "CastLike") and not any(index.is_float(v) for v in index.outputs[node_id])
    return node.op_type in _STEPS or (to_integer and from_float)


def last_resorts(context: Context, current: Evaluation) -> list[dict[int, Refusal]]:
    """All that the broken outputs depend on: first without the matrix products, then with them."""
    index = context.index
    found = upstream(index, _values(index, current.broken)) & current.plan.narrow_nodes()
    products = {n for n in found if (row := context.row(n)) is not None and row.op_class is OpClass.NARROW}
    reason = f"output '{next(iter(current.broken), '')}' depends on it, and no single rounding explains its error"
    steps = [found - products, found] if products and found - products else [found]
    return [_refusals(step, reason) for step in steps if step]


def _refusals(nodes: frozenset[int], reason: str) -> dict[int, Refusal]:
    return {n: Refusal(n, "repair", reason) for n in sorted(nodes)}


def _values(index: ModelIndex, outputs: Iterable[str]) -> list[int]:
    wanted = set(outputs)
    return [index.id_of(v) for v in index.model.graph.outputs if v.name in wanted]


def upstream(index: ModelIndex, values: Iterable[int]) -> frozenset[int]:
    """Nodes that values depend on, through bodies into what these capture."""
    seen = {v for v in values if v >= 0}
    waiting = deque(seen)
    found: set[int] = set()
    while waiting:
        node_id = index.producer[waiting.popleft()]
        if node_id < 0 or node_id in found:
            continue
        found.add(node_id)
        leaves = [index.id_of(v) for b in index.bodies.get(node_id, {}).values() for v in index.scopes[b].graph.outputs]
        new = {v for v in (*index.inputs[node_id], *leaves) if v >= 0} - seen
        seen |= new
        waiting.extend(sorted(new))
    return frozenset(found)
