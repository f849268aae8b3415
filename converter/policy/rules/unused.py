"""Nodes that no output of the model depends on: they stay as they are, and nothing is decided for their sake."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from converter.graph import ModelIndex
from converter.policy.legality import Refusal

if TYPE_CHECKING:
    from converter.policy.context import Context


def unused(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes that lead nowhere."""
    for node_id in sorted(narrow & context.unused):
        yield Refusal(node_id, "unused", "no output of the model depends on it")


def unused_nodes(index: ModelIndex) -> frozenset[int]:
    """Nodes from which no output of the main graph can be reached; a body is used as a whole, or not at all."""
    of_scope: dict[int, list[int]] = {}
    for value_id, leaves in enumerate(index.leaves):
        for scope_id, _ in leaves:
            of_scope.setdefault(scope_id, []).append(value_id)
    used: set[int] = set()
    waiting = list(of_scope.get(0, ()))
    while waiting:
        node_id = index.producer[waiting.pop()]
        if node_id < 0 or node_id in used:
            continue
        used.add(node_id)
        waiting += [v for v in index.inputs[node_id] if v >= 0]
        waiting += [v for scope_id in index.bodies.get(node_id, {}).values() for v in of_scope.get(scope_id, ())]
    return frozenset(range(len(index.nodes))) - used


def without_readers(index: ModelIndex, unused: frozenset[int]) -> ModelIndex:
    """The index as rules see it: unused nodes read nothing."""
    if not unused:
        return index
    readers = [[(n, k) for n, k in of_value if n not in unused] for of_value in index.readers]
    return replace(index, readers=readers)
