"""Asking one rule about one tiny graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from converter.policy.context import Context, Rule
from converter.policy.legality import Refusal
from tests.models.build import Array, indexed
from tests.models.run import context_of

Feeds = Mapping[str, Any]


def context(
    text: str, feeds: Feeds | Sequence[Feeds] = (), weights: Mapping[str, Array] | None = None, opset: int = 17,
    **options: Any,
) -> Context:  # fmt: skip
    """The evidence of a graph: without feeds nothing was observed."""
    batches = [feeds] if isinstance(feeds, Mapping) else list(feeds)
    return context_of(indexed(text, opset, weights), batches, **options)


def refusals(rule: Rule, given: Context, *narrow: str) -> dict[str, Refusal]:
    """What a rule says, by label; every node the schema allows is narrow unless some are named."""
    labels = given.index.labels
    chosen = frozenset(labels.index(n) for n in narrow) if narrow else frozenset(given.ports)
    found: dict[str, Refusal] = {}
    for refusal in rule(given, chosen):
        assert refusal.node_id in chosen
        found.setdefault(labels[refusal.node_id], refusal)
    return found
