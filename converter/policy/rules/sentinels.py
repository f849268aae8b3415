"""Rule 4, sentinels: a huge finite constant that only means "masked" may be limited; true infinities stay.

Limited (and listed in ``constants_changed``) is a sentinel that an operator *selects* (Where, Pad, Max, Min, Clip)
and that reaches nothing but operators which only ask for its order: Softmax, maxima, comparisons.  The limit leaves
room to add a score.  A sentinel that is *added* to scores stays FP32 with its Add: limited, it would no longer
swallow the score, and a fully masked row would stop being uniform.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from converter.graph import ModelIndex
from converter.policy.context import Context
from converter.policy.lookup import policy_for
from converter.types import OpClass

HEADROOM = 2.0
"""A limited sentinel is this many times below the maximum: as much again may be added to it."""

_SELECTING = frozenset(("Where", "Pad", "Max", "Min", "ScatterND", "ScatterElements", "Concat", "Expand", "Reshape"))
_ORDERING = frozenset(
    (
        "Softmax", "LogSoftmax", "ReduceMax", "ArgMax", "TopK", "MaxPool", "GlobalMaxPool", "Greater", "Less",
        "GreaterOrEqual", "LessOrEqual", "Hardmax", "Relu", "Sigmoid", "Max", "Min",
    )
)  # fmt: skip


def limited_sentinels(context: Context) -> dict[int, float]:
    """Constant value id -> magnitude its narrow copy is limited to."""
    found: dict[int, float] = {}
    for value_id in sorted(context.index.constants):
        absmax = context.absmax(value_id) if context.index.is_wide(value_id) else None
        if absmax is None or absmax <= context.fmt.max_finite:
            continue
        bound = _bound(context, value_id)
        if bound is not None:
            found[value_id] = bound
    return found


def _bound(context: Context, value_id: int) -> float | None:
    """The limit for a sentinel, or None where it is an ordinary number or feeds arithmetic."""
    index = context.index
    readers = index.readers[value_id]
    if not readers or index.leaves[value_id] or not _is_sentinel(context, value_id):
        return None
    if all(index.nodes[n].op_type == "Clip" and position > 0 for n, position in readers):
        return context.fmt.max_finite
    if all(index.nodes[n].op_type in _SELECTING and _only_ordered(index, n) for n, _ in readers):
        return context.fmt.max_finite / HEADROOM
    return None


def _is_sentinel(context: Context, value_id: int) -> bool:
    """Whether every element beyond the maximum is one and the same magnitude, and no other comes near it."""
    array = np.abs(np.asarray(context.index.constants[value_id].numpy(), np.float32)).reshape(-1)
    array = array[np.isfinite(array)]
    beyond = array[array > context.fmt.max_finite]
    near = array[(array > context.fmt.max_finite / (4 * HEADROOM)) & (array <= context.fmt.max_finite)]
    return bool(beyond.size) and not near.size and bool((beyond == beyond[0]).all())


def _only_ordered(index: ModelIndex, node_id: int) -> bool:
    """Whether everything a node makes ends in operators that ask for order only, through data movement."""
    waiting, done = [node_id], {node_id}
    while waiting:
        for value_id in index.outputs[waiting.pop()]:
            if value_id < 0:
                continue
            if index.leaves[value_id]:
                return False
            for reader, _ in index.readers[value_id]:
                op_type = index.nodes[reader].op_type
                if op_type in _ORDERING or reader in done:
                    continue
                if not _moves(index, reader):
                    return False
                done.add(reader)
                waiting.append(reader)
    return True


def _moves(index: ModelIndex, node_id: int) -> bool:
    node = index.nodes[node_id]
    row = policy_for(node.domain, node.op_type, index.version(node.domain))
    computes = node.op_type in ("Cast", "CastLike", "Where")
    return row is not None and row.op_class is OpClass.EXACT and not computes


def saturable_inputs(context: Context, bounds: dict[int, float]) -> Iterable[tuple[int, frozenset[int]]]:
    """(node id, its constant inputs that may be limited)."""
    readers: dict[int, set[int]] = {}
    for value_id in bounds:
        for node_id, _ in context.index.readers[value_id]:
            readers.setdefault(node_id, set()).add(value_id)
    return ((node_id, frozenset(values)) for node_id, values in readers.items())
