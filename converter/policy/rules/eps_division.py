"""Rule 2, tiny epsilons: ``x / (norm + 1e-12)``, ``rsqrt(var + 1e-8)`` and their kin stay FP32 as a whole.

An epsilon below the smallest normal vanishes in the narrow format, and with it the protection against a zero
divisor, whatever this batch holds.  The norm that feeds it, everything up to the division, and the division
itself stay FP32.
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import Evidence

_GUARDS = frozenset(("Add", "Max", "Clip", "Sum"))
_PASSES = frozenset(
    ("Sqrt", "Reciprocal", "Pow", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Cast", "Neg", "Transpose")
)
_NORMS = frozenset(
    (
        "ReduceL2", "ReduceL1", "ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceMax", "Sqrt", "Abs", "Pow", "Mul",
        "Sub",
    )
)  # fmt: skip
_MAX_CHAIN = 8


def eps_division(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse the nodes of every division that a too small epsilon guards."""
    limit = context.fmt.smallest_normal
    for node_id, node in enumerate(context.index.nodes):
        if canonical_domain(node.domain) != "" or node.op_type not in _GUARDS:
            continue
        epsilon = _epsilon(context, node_id, limit)
        if epsilon is None:
            continue
        name, value = epsilon
        chain = _to_division(context.index, node_id)
        if not chain:
            continue
        for member in sorted((chain | _norm(context.index, node_id)) & narrow):
            yield Refusal(
                member,
                "eps division",
                f"epsilon '{name}' of {value:.3g} guards a division here and lies below {context.fmt.label}'s smallest "
                f"normal {limit:.3g}: narrowed, it would protect nothing",
                Evidence(name, value, limit),
            )


def _epsilon(context: Context, node_id: int, limit: float) -> tuple[str, float] | None:
    for value_id in context.index.inputs[node_id]:
        scalar = context.scalar(value_id) if value_id >= 0 and context.index.is_wide(value_id) else None
        if scalar is not None and 0.0 < scalar < limit:
            return context.index.name_of(value_id), scalar
    return None


def _to_division(index: ModelIndex, node_id: int) -> set[int]:
    """Nodes from a guarded value to the divisions it feeds, both ends included; empty when it feeds none."""
    found: set[int] = set()
    waiting: list[tuple[int, tuple[int, ...]]] = [(node_id, (node_id,))]
    while waiting:
        current, path = waiting.pop()
        for value_id in index.outputs[current]:
            for reader, position in index.readers[value_id] if value_id >= 0 else ():
                op_type = index.nodes[reader].op_type
                if (op_type == "Div" and position == 1) or (op_type == "Mul" and _inverted(index, path)):
                    found |= {*path, reader}
                elif op_type in _PASSES and len(path) < _MAX_CHAIN and reader not in path:
                    waiting.append((reader, (*path, reader)))
    return found


def _inverted(index: ModelIndex, path: tuple[int, ...]) -> bool:
    """Whether a path went through something that divides: Reciprocal, or Pow (with a negative exponent)."""
    return any(index.nodes[n].op_type in ("Reciprocal", "Pow") for n in path)


def _norm(index: ModelIndex, node_id: int) -> set[int]:
    """The reductions and roots that feed the guard."""
    found: set[int] = set()
    waiting = [node_id]
    for _ in range(_MAX_CHAIN):
        following = []
        for current in waiting:
            for value_id in index.inputs[current]:
                producer = index.producer[value_id] if value_id >= 0 else -1
                if producer >= 0 and producer not in found and index.nodes[producer].op_type in _NORMS:
                    found.add(producer)
                    if not index.nodes[producer].op_type.startswith("Reduce"):
                        following.append(producer)
        waiting = following
    return found
