"""Why a node was widened by measurement, in words and numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from converter.graph import ModelIndex
from converter.policy.legality import Refusal
from converter.search.prices import Price
from converter.types import Evidence


def measured_reasons(index: ModelIndex, rule: str, prices: list[Price], nodes: Iterable[int]) -> dict[int, Refusal]:
    """A refusal for each node, with the dearest rounding that it takes part in."""
    dearest: dict[int, Price] = {}
    wanted = set(nodes)
    for price in prices:
        for node_id in price.nodes & wanted:
            if node_id not in dearest or price.cost > dearest[node_id].cost:
                dearest[node_id] = price
    return {node_id: _reason(index, rule, node_id, dearest[node_id]) for node_id in sorted(dearest)}


def _reason(index: ModelIndex, rule: str, node_id: int, price: Price) -> Refusal:
    name = index.name_of(price.value_id)
    share = math.sqrt(price.cost)
    return Refusal(
        node_id,
        rule,
        f"rounding value '{name}' costs {share:.3g} times the allowed output error (local error times amplification, "
        "measured on the batches)",
        Evidence(name, share, 1.0),
    )
