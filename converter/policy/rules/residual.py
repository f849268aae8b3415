"""Rule 7, residual streams: when a running sum over layers passes the maximum, the whole stream stays FP32.

In T5 and its kin the residual grows from block to block beyond 65504.  Clamping one Add changes every block
behind it, so the chain of Adds stays FP32 and the matrix products around it are narrow.
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import Evidence

_MOVES = frozenset(("Identity", "Reshape", "Transpose", "Dropout", "Cast", "Clip"))
MIN_LENGTH = 2


def residual(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse every Add of a chain of Adds in which a value passes the maximum."""
    limit = context.fmt.max_finite
    for stream in _streams(context):
        beyond = [
            (v, seen)
            for n in stream
            for v in context.index.outputs[n]
            if (seen := context.seen(v)) is not None and seen.absmax > limit
        ]
        if len([n for n in stream if context.index.nodes[n].op_type == "Add"]) < MIN_LENGTH or not beyond:
            continue
        value_id, seen = max(beyond, key=lambda entry: entry[1].absmax)
        name = context.index.name_of(value_id)
        for node_id in sorted(stream & narrow):
            yield Refusal(
                node_id,
                "residual stream",
                f"belongs to a chain of Adds in which '{name}' reaches {seen.absmax:.6g}; {context.fmt.label} ends at "
                f"{limit:.6g}, and a clamp would change every block behind it",
                Evidence(name, seen.absmax, limit),
            )


def _streams(context: Context) -> list[set[int]]:
    """Adds of two computed values, connected through each other's outputs (data movement between them included)."""
    index = context.index
    members = {n for n in range(len(index.nodes)) if _is_residual_add(context, n)}
    links: dict[int, set[int]] = {n: set() for n in members}
    between: dict[int, set[int]] = {n: set() for n in members}
    for start in members:
        waiting: list[tuple[int, tuple[int, ...]]] = [(start, ())]
        while waiting:
            current, path = waiting.pop()
            for value_id in index.outputs[current]:
                for reader, _ in index.readers[value_id] if value_id >= 0 else ():
                    if reader in members:
                        links[start].add(reader)
                        links[reader].add(start)
                        between[start] |= set(path)
                    elif index.nodes[reader].op_type in _MOVES and len(path) < 4 and reader not in path:
                        waiting.append((reader, (*path, reader)))
    return [group | {b for n in group for b in between[n]} for group in _components(links)]


def _is_residual_add(context: Context, node_id: int) -> bool:
    index = context.index
    inputs = index.inputs[node_id]
    if index.nodes[node_id].op_type != "Add" or len(inputs) != 2:
        return False
    return all(index.is_wide(v) and v not in index.constants for v in inputs)


def _components(links: dict[int, set[int]]) -> list[set[int]]:
    left, found = set(links), []
    while left:
        waiting = [left.pop()]
        group = set(waiting)
        while waiting:
            for other in links[waiting.pop()] - group:
                group.add(other)
                left.discard(other)
                waiting.append(other)
        found.append(group)
    return found
