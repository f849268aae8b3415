"""Rule 9, the user's word: ``--keep-fp32`` patterns and policy files.  One that matches nothing is an error."""

from __future__ import annotations

from fnmatch import fnmatchcase

from converter.errors import OptionError
from converter.graph import ModelIndex
from converter.policy.legality import float_ports
from converter.types import PolicyOverride


def matched_nodes(index: ModelIndex, overrides: tuple[PolicyOverride, ...]) -> dict[int, PolicyOverride]:
    """Node id -> the last override that matches it.

    Raises:
        OptionError: an override matches no node; the message shows names that come close.
    """
    found: dict[int, PolicyOverride] = {}
    for override in overrides:
        hits = [n for n in range(len(index.nodes)) if float_ports(index, n) and matches(index, n, override)]
        if not hits:
            raise OptionError(_nothing(index, override))
        found.update(dict.fromkeys(hits, override))
    return found


def matches(index: ModelIndex, node_id: int, override: PolicyOverride) -> bool:
    """Whether every field an override gives fits a node."""
    node = index.nodes[node_id]
    checks = (
        (override.node, lambda p: fnmatchcase(index.labels[node_id], p)),
        (override.op_type, lambda p: node.op_type == p),
        (override.value, lambda p: any(fnmatchcase(v.name or "", p) for v in node.outputs)),
        (override.inputs_from, lambda p: p in _producers(index, node_id)),
        (override.feeds, lambda p: p in _readers(index, node_id)),
    )
    given = [(pattern, check) for pattern, check in checks if pattern is not None]
    return bool(given) and all(check(pattern) for pattern, check in given)


def _producers(index: ModelIndex, node_id: int) -> set[str]:
    makers = (index.producer[v] for v in index.inputs[node_id] if v >= 0)
    return {index.nodes[n].op_type for n in makers if n >= 0}


def _readers(index: ModelIndex, node_id: int) -> set[str]:
    return {index.nodes[n].op_type for v in index.outputs[node_id] if v >= 0 for n, _ in index.readers[v]}


def _nothing(index: ModelIndex, override: PolicyOverride) -> str:
    pattern = override.node or override.value or override.op_type or ""
    names = [label for n, label in enumerate(index.labels) if float_ports(index, n)]
    wanted = pattern.strip("*?").lower()
    close = [n for n in names if wanted and (wanted in n.lower() or n.lower() in wanted)] or names
    shown = ", ".join(f"'{n}'" for n in close[:5]) or "none"
    return (
        f"{override.origin or 'override ' + repr(pattern)} matches no float node of the model; "
        f"node names look like {shown} ({len(names)} in all)"
    )
