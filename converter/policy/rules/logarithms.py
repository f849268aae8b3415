"""Softplus, mish and logit written out: what feeds a logarithm (or comes out of an exponential) stays FP32.

A logarithm turns a relative error of its argument into an absolute one of its result: near one that is
everything, and an argument rounded to zero is minus infinity.  An exponential overflows FP16 above 11.09.
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import OpClass

_ARITHMETIC = frozenset(("Add", "Sub", "Div", "Mul", "Neg", "Clip", "Max", "Min", "Sum", "ReduceSum", "Sigmoid"))
_MAX_CHAIN = 4


def logarithms(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse the arithmetic between its inputs and a Log, and between an Exp and a Log."""
    index = context.index
    for node_id, node in enumerate(index.nodes):
        if node.op_type != "Log":
            continue
        waiting, seen = [(node_id, 0)], {node_id}
        while waiting:
            current, depth = waiting.pop()
            for producer in context.float_producers(current):
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
