"""The FP32 set that repair or search found, as rules of a policy file: by pattern where one fits, else by name.

Exporters rename nodes from version to version; ``every Div fed by a Sqrt`` survives that.  A pattern is used only
when it catches nodes of the set and no node that is narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from converter.graph import ModelIndex
from converter.policy.rules.overrides import matches
from converter.types import PolicyOverride, PrecisionPlan

MIN_CAUGHT = 2
"""A pattern that catches a single node says no more than its name."""


def policy_rules(index: ModelIndex, plan: PrecisionPlan, wide: Iterable[int]) -> tuple[PolicyOverride, ...]:
    """Rules that keep just these nodes FP32 on top of what the plan's own rules keep."""
    narrow = plan.narrow_nodes()
    left = set(wide)
    rules: list[PolicyOverride] = []
    for pattern in _patterns(index, left):
        caught = {n for n in range(len(index.nodes)) if matches(index, n, pattern)}
        if caught & narrow or len(caught & left) < MIN_CAUGHT:
            continue
        rules.append(pattern)
        left -= caught
    rules += [PolicyOverride(node=_literal(index.labels[n])) for n in sorted(left)]
    return tuple(rules)


def _patterns(index: ModelIndex, nodes: set[int]) -> Iterator[PolicyOverride]:
    """Patterns over operator types, the broadest first, in a fixed order."""
    kinds = sorted({index.nodes[n].op_type for n in nodes})
    yield from (PolicyOverride(op_type=kind) for kind in kinds)
    pairs: set[tuple[str, str, str]] = set()
    for node_id in nodes:
        kind = index.nodes[node_id].op_type
        makers = {index.producer[v] for v in index.inputs[node_id] if v >= 0}
        pairs |= {(kind, "inputs_from", index.nodes[m].op_type) for m in makers if m >= 0}
        readers = {r for v in index.outputs[node_id] if v >= 0 for r, _ in index.readers[v]}
        pairs |= {(kind, "feeds", index.nodes[r].op_type) for r in readers}
    for kind, side, other in sorted(pairs):
        if side == "feeds":
            yield PolicyOverride(op_type=kind, feeds=other)
        else:
            yield PolicyOverride(op_type=kind, inputs_from=other)


def _literal(name: str) -> str:
    """A node name as a shell pattern that matches itself only."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
