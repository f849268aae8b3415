"""Rule 1, hidden overflow: sums and squares inside an operator leave the range while all around looks harmless."""

from __future__ import annotations

import math
from collections.abc import Iterable

from converter.policy.context import Context
from converter.policy.depth import reduction_depth
from converter.policy.legality import Refusal
from converter.types import Evidence, HiddenRange, ValueRange


def hidden_range(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes whose policy row names a hidden range that passes the maximum on this batch."""
    limit = context.fmt.max_finite
    for node_id in sorted(narrow):
        row = context.row(node_id)
        if row is None or row.hidden_range is HiddenRange.NONE:
            continue
        seen = _data_range(context, node_id)
        depth = reduction_depth(context, node_id)
        if seen is None or depth is None:
            continue
        bound = _bound(context, node_id, row.hidden_range, seen, depth)
        if bound > limit:
            name = context.index.name_of(context.index.inputs[node_id][0])
            yield Refusal(
                node_id,
                "hidden range",
                f"inside, {row.hidden_range.value} reaches {bound:.6g} (input '{name}' has absmax {seen.absmax:.6g}, "
                f"{depth} terms); {context.fmt.label} ends at {limit:.6g}",
                Evidence(name, bound, limit),
            )


def _data_range(context: Context, node_id: int) -> ValueRange | None:
    """The widest range among the float inputs."""
    ranges = [context.seen(v) for v in context.index.inputs[node_id] if context.index.is_wide(v)]
    return max((r for r in ranges if r is not None), key=lambda r: r.absmax, default=None)


def _bound(context: Context, node_id: int, kind: HiddenRange, seen: ValueRange, depth: int) -> float:
    if kind is HiddenRange.SUM:
        return _sum_bound(context, node_id, seen, depth)
    if kind is HiddenRange.SQUARE:
        return seen.absmax**2
    if kind is HiddenRange.SUM_SQUARE:
        return seen.absmax**2 * depth
    if kind is HiddenRange.CUBE:
        return seen.absmax**3
    exponential = math.exp(min(max(seen.maximum, 0.0), 700.0))
    return exponential * (depth if kind is HiddenRange.SUM_EXP else 1)


def _sum_bound(context: Context, node_id: int, seen: ValueRange, depth: int) -> float:
    """How large a running sum gets: the final one as the output tells it, and a random walk of signed terms.

    ``absmax * depth`` would only be reached if all terms were equal, and would keep every pooling FP32.
    """
    index = context.index
    result = context.seen(index.outputs[node_id][0])
    final = 0.0
    if result is not None:
        divided = index.nodes[node_id].op_type not in ("ReduceSum", "Sum")
        final = result.absmax * (depth if divided else 1)
    return max(final, min(seen.absmax * math.sqrt(depth), seen.absmax * depth))
