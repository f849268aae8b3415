"""Rule 8, written-out normalisations: squares, their mean or sum, the root and the division's divisor stay FP32.

Squares double binary exponents, so their reduction overflows in FP16 from a few hundred on and the result is
silently zero, not NaN.  The pattern is found from data flow: a value times itself (or to the power two) that a
reduction sums or averages, whatever exporter wrote it (layer, RMS, L2 and group forms).
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.graph import ModelIndex
from converter.policy.context import Context
from converter.policy.legality import Refusal

_REDUCTIONS = frozenset(("ReduceMean", "ReduceSum", "GlobalAveragePool", "AveragePool", "ReduceSumSquare", "ReduceL2"))
_BETWEEN = frozenset(("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Identity", "Flatten"))
_AFTER = _BETWEEN | frozenset(("Add", "Sqrt", "Reciprocal", "Pow", "Clip", "Max", "Sub", "Mul", "Div", "Expand"))
_MAX_CHAIN = 6


def norm_patterns(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse the statistics of every written-out norm; the division itself may follow its neighbours."""
    index = context.index
    for node_id in range(len(index.nodes)):
        if not _squares(context, node_id):
            continue
        for reduction in _reached_reductions(index, node_id):
            members = {node_id, reduction} | _towards_root(context, reduction)
            label = index.labels[node_id]
            for member in sorted(members & narrow):
                yield Refusal(
                    member,
                    "norm pattern",
                    f"part of a norm's statistics: '{label}' squares what '{index.labels[reduction]}' sums, and an "
                    "overflow there gives zeros, not NaN",
                )


def _squares(context: Context, node_id: int) -> bool:
    index = context.index
    inputs = index.inputs[node_id]
    op_type = index.nodes[node_id].op_type
    if op_type == "Mul":
        return len(inputs) == 2 and inputs[0] == inputs[1] and index.is_wide(inputs[0])
    return op_type == "Pow" and index.is_wide(inputs[0]) and context.scalar(inputs[1]) == 2.0


def _reached_reductions(index: ModelIndex, node_id: int) -> list[int]:
    found, waiting = [], [(node_id, 0)]
    while waiting:
        current, depth = waiting.pop()
        for value_id in index.outputs[current]:
            for reader, _ in index.readers[value_id] if value_id >= 0 else ():
                op_type = index.nodes[reader].op_type
                if op_type in _REDUCTIONS:
                    found.append(reader)
                elif op_type in _BETWEEN and depth < _MAX_CHAIN:
                    waiting.append((reader, depth + 1))
    return found


def _towards_root(context: Context, reduction: int) -> set[int]:
    """Nodes from a reduction to the root of its result; empty when no root follows (a plain sum of squares)."""
    index = context.index
    found: set[int] = set()
    waiting: list[tuple[int, tuple[int, ...]]] = [(reduction, ())]
    while waiting:
        current, path = waiting.pop()
        for value_id in index.outputs[current]:
            for reader, _ in index.readers[value_id] if value_id >= 0 else ():
                op_type = index.nodes[reader].op_type
                root = op_type == "Sqrt" or (op_type == "Pow" and (context.scalar(index.inputs[reader][1]) or 1.0) < 1)
                if root:
                    found |= {*path, reader}
                elif op_type in _AFTER and len(path) < _MAX_CHAIN and reader not in path:
                    waiting.append((reader, (*path, reader)))
    return found
