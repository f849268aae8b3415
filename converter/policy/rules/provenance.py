"""A model of ours, converted again: every node keeps the decision that is written on it."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import PROVENANCE, RAISED_OPSET


def provenance(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes that an earlier conversion decided on or put in itself."""
    for node_id in sorted(narrow):
        if was_decided(context.index.nodes[node_id]):
            yield Refusal(node_id, "provenance", "an earlier conversion by narrowcast decided so")


def was_decided(node: ir.Node) -> bool:
    """Whether an earlier conversion decided on a node, or inserted it; what it left FP32 in it stays so."""
    properties = node.metadata_props
    inserted = properties.get(f"{PROVENANCE}.rule", RAISED_OPSET) != RAISED_OPSET
    return inserted or f"{PROVENANCE}.format" in properties
