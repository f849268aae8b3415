"""Rule 8, written-out normalisations stay FP32 as a whole, from the mean to the bias.

Squares double binary exponents, so their reduction overflows in FP16 from a few hundred on and the result is
silently zero, not NaN.  The pattern is found from data flow: a value times itself (or to the power two) that a
reduction sums or averages, whatever exporter wrote it (layer, RMS, L2 and group forms).  The elementwise rest of the
norm (what is subtracted, divided, scaled and shifted) stays with its statistics: runtimes fuse the whole into one
operator, and ONNX Runtime's fusion makes an invalid one of a norm whose scale has another type than its input.
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
    """Refuse the nodes of every written-out norm."""
    index = context.index
    for node_id in range(len(index.nodes)):
        if not _squares(context, node_id):
            continue
        for reduction in _reached_reductions(index, node_id):
            root = _towards_root(context, reduction)
            members = {node_id, reduction} | root
            if root:
                members |= _centring(context, node_id) | _application(context, members)
                if context.mix.narrow_scales:
                    members -= _scales(context, members)
            label = index.labels[node_id]
            for member in sorted(members & narrow):
                yield Refusal(
                    member,
                    "norm pattern",
                    f"part of a written-out norm: '{label}' squares what '{index.labels[reduction]}' sums, and an "
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


def _centring(context: Context, square: int) -> set[int]:
    """The subtraction of the mean in front of the square, with the mean."""
    index = context.index
    producer = index.producer[index.inputs[square][0]]
    if producer < 0 or index.nodes[producer].op_type != "Sub":
        return set()
    makers = {index.producer[v] for v in index.inputs[producer] if v >= 0 and index.producer[v] >= 0}
    return {producer} | {m for m in makers if index.nodes[m].op_type in _REDUCTIONS}


def _application(context: Context, statistics: set[int]) -> set[int]:
    """What is done with the root: the one product or quotient with the data, then scale and shift by constants."""
    index = context.index
    found: set[int] = set()
    applied: set[int] = set()
    waiting = [(n, 0) for n in statistics]
    while waiting:
        current, depth = waiting.pop()
        for value_id in index.outputs[current]:
            for reader, _ in index.readers[value_id] if value_id >= 0 else ():
                if reader in statistics | found or depth >= _MAX_CHAIN or index.nodes[reader].op_type not in _APPLIES:
                    continue
                if current in statistics and index.nodes[current].op_type in _REDUCTIONS:
                    continue
                others = [v for v in index.inputs[reader] if v >= 0 and v not in index.constants and v != value_id]
                foreign = [v for v in others if index.producer[v] not in statistics | found]
                if foreign and (current in applied or index.nodes[reader].op_type not in ("Mul", "Div")):
                    continue
                found.add(reader)
                if foreign or current in applied:
                    applied.add(reader)
                waiting.append((reader, depth + 1))
    return found


def _scales(context: Context, members: set[int]) -> set[int]:
    """The members that scale or shift the finished norm by constants."""
    index = context.index
    by_constants = {n for n in members if any(v in index.constants for v in index.inputs[n])}
    steps = {n for n in by_constants if index.nodes[n].op_type in ("Mul", "Add")}
    inner = members - steps
    return {n for n in steps if not any(r in inner for v in index.outputs[n] for r, _ in index.readers[v])}


_APPLIES = _BETWEEN | frozenset(("Div", "Mul", "Reciprocal", "Add", "Sub", "Expand"))
