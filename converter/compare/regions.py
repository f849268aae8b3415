"""Where the paths of a value that is read more than once come together again.

Two readers of one value see the same error, and a node in which their results meet may cancel or double it: gains
measured edge by edge do not know.  For every such value the region up to its immediate post-dominator (the first
node that all its paths go through) is found; an error can then be sent through the region as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from converter.graph import ModelIndex

MAX_REGION = 256
"""Regions with more nodes than this are left to the edge-by-edge gains."""

MAX_WORK = 12
"""All regions together may hold this many times the graph's nodes; small regions go first."""


@dataclass(frozen=True, slots=True)
class Region:
    """The nodes between a value and the node ``end`` in which all its paths meet (``end`` included)."""

    value_id: int
    end: int
    nodes: frozenset[int]


def find_regions(index: ModelIndex) -> dict[int, Region]:
    """Regions by value id, over all scopes; values whose paths only meet at the graph's end have none."""
    meets = _post_dominators(index)
    found = []
    for value_id, readers in enumerate(index.readers):
        if index.leaves[value_id] or value_id in index.constants or not index.is_wide(value_id):
            continue
        scope_id = index.value_scope[value_id]
        nodes = {n for n, _ in readers}
        if len(nodes) < 2 or any(index.node_scope[n] != scope_id for n in nodes):
            continue
        end = _common(meets, nodes)
        if end is None:
            continue
        region = _between(index, nodes, end)
        if region is not None:
            found.append(Region(value_id, end, region))
    return _within_budget(found, len(index.nodes))


def _post_dominators(index: ModelIndex) -> dict[int, tuple[int | None, int]]:
    """Node id -> (immediate post-dominator or None for the graph's end, depth in that tree)."""
    meets: dict[int, tuple[int | None, int]] = {}
    for node_id in reversed(range(len(index.nodes))):
        scope_id = index.node_scope[node_id]
        following: set[int] = set()
        escapes = False
        for value_id in index.outputs[node_id]:
            if value_id < 0:
                continue
            escapes = escapes or bool(index.leaves[value_id])
            for reader, _ in index.readers[value_id]:
                owner = _owner_in(index, reader, scope_id)
                if owner is None:
                    escapes = True
                else:
                    following.add(owner)
        end = None if escapes or not following else _common(meets, following)
        meets[node_id] = (end, 0 if end is None else meets[end][1] + 1)
    return meets


def _owner_in(index: ModelIndex, node_id: int, scope_id: int) -> int | None:
    """The node of a scope that is, or holds in a body, another node."""
    current: int | None = node_id
    while current is not None and index.node_scope[current] != scope_id:
        current = index.scopes[index.node_scope[current]].owner
    return current


def _common(meets: dict[int, tuple[int | None, int]], nodes: set[int]) -> int | None:
    """The first node that post-dominates all of them (one of them included)."""
    first, *others = sorted(nodes)
    common: int | None = first
    for other in others:
        a: int | None = common
        b: int | None = other
        while a is not None and b is not None and a != b:
            if meets[a][1] >= meets[b][1]:
                a = meets[a][0]
            else:
                b = meets[b][0]
        common = a if a == b else None
        if common is None:
            return None
    return common


def _between(index: ModelIndex, starts: set[int], end: int) -> frozenset[int] | None:
    """Nodes from the readers to ``end``; None when there are too many, or one has bodies."""
    region = {end}
    waiting = [n for n in starts if n != end]
    while waiting:
        node_id = waiting.pop()
        if node_id in region:
            continue
        region.add(node_id)
        if len(region) > MAX_REGION:
            return None
        waiting += [r for v in index.outputs[node_id] if v >= 0 for r, _ in index.readers[v] if r != end]
    return None if any(n in index.bodies for n in region) else frozenset(region)


def _within_budget(found: list[Region], nodes: int) -> dict[int, Region]:
    budget = MAX_WORK * nodes
    kept: dict[int, Region] = {}
    for region in sorted(found, key=lambda r: (len(r.nodes), r.value_id)):
        budget -= len(region.nodes)
        if budget < 0:
            break
        kept[region.value_id] = region
    return kept
