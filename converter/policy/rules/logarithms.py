"""Softplus, mish and logit written out: what feeds a logarithm (or comes out of an exponential) stays FP32.

A logarithm turns a relative error of its argument into an absolute one of its result: near one that is
everything, and an argument rounded to zero is minus infinity.  An exponential overflows FP16 above 11.09.
A term that is small in the sum it goes into brings as little of its own error: the chain ends there.
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import OpClass

_ARITHMETIC = frozenset(("Add", "Sub", "Div", "Mul", "Neg", "Clip", "Max", "Min", "Sum", "ReduceSum", "Sigmoid"))
_MAX_CHAIN = 4
_SUMS = frozenset(("Add", "Sub", "Sum"))

SMALL_SHARE = 1 / 16
"""Of a sum: the rounding of a smaller term is at most a sixteenth of the sum's own, which stays FP32."""


def logarithms(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse the arithmetic between its inputs and a Log, and between an Exp and a Log."""
    index = context.index
    for node_id, node in enumerate(index.nodes):
        if node.op_type != "Log":
            continue
        waiting, seen = [(node_id, 0)], {node_id}
        while waiting:
            current, depth = waiting.pop()
            for producer in _weighty_producers(context, current):
                row = context.row(producer)
                follows = row is not None and row.op_class is not OpClass.NARROW
                if producer in seen or depth >= _MAX_CHAIN or not follows:
                    continue
                if index.nodes[producer].op_type not in _ARITHMETIC:
                    continue
                seen.add(producer)
                waiting.append((producer, depth + 1))
                if producer in narrow:
                    yield Refusal(
                        producer,
                        "logarithm",
                        f"makes the argument of '{index.labels[node_id]}' (Log), which turns a relative rounding "
                        "into an absolute error",
                    )


def _weighty_producers(context: Context, node_id: int) -> Iterable[int]:
    """Nodes that make the FP32 inputs of a node, without what stays small beside the sum that it makes."""
    index = context.index
    if index.nodes[node_id].op_type not in _SUMS:
        return list(context.float_producers(node_id))
    total = context.ranges.get(index.outputs[node_id][0])
    # The smallest sum there was; one that changes its sign comes near zero.
    floor = 0.0 if total is None or total.nonfinite else max(total.minimum, -total.maximum, 0.0)
    terms = [v for v in index.inputs[node_id] if index.is_wide(v) and index.producer[v] >= 0]
    seen = {v: context.ranges.get(v) for v in terms}
    return [index.producer[v] for v, r in seen.items() if r is None or r.nonfinite or r.absmax > SMALL_SHARE * floor]
