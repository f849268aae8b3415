"""The passes in their order, each followed by the grammar check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from converter.formats import NARROW_FORMATS
from converter.graph import ModelIndex
from converter.rewrite.base import Draft, Pass
from converter.rewrite.check import check_structure, interface, narrowed
from converter.rewrite.fold_casts import FoldCasts
from converter.rewrite.insert_casts import InsertCasts
from converter.rewrite.insert_clamps import InsertClamps
from converter.rewrite.narrow_initializers import NarrowInitializers
from converter.rewrite.retype import Retype
from converter.types import PROVENANCE, ConstantChange, PrecisionPlan

PASSES: tuple[Pass, ...] = (NarrowInitializers(), Retype(), InsertClamps(), InsertCasts(), FoldCasts())

MIN_IR_FOR_INITIALIZERS = 4
"""Before IR version 4 every initializer had to be a graph input too."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A mixed model and what rewriting did to it."""

    model: ir.Model
    casts: int
    clamps: int
    constants_changed: tuple[ConstantChange, ...]


def rewrite(index: ModelIndex, plan: PrecisionPlan, narrow_io: bool) -> Rewritten:
    """Rewrite the indexed model in place; afterwards the index speaks of the past.

    Raises:
        InternalError: a pass broke the grammar.
    """
    given = interface(index.model)
    if narrow_io:
        given = narrowed(given, NARROW_FORMATS[plan.to].type_string)
    draft = Draft(index, plan)
    for step in PASSES:
        step.apply(draft)
        step.ensures(draft)
        check_structure(index.model, given, step.name)
    _drop_unread(index)
    _sign(index, plan)
    if index.model.ir_version < MIN_IR_FOR_INITIALIZERS and _has_lone_initializers(index.model):
        index.model.ir_version = MIN_IR_FOR_INITIALIZERS
    return Rewritten(index.model, draft.casts, draft.clamps, tuple(draft.changed))


def _sign(index: ModelIndex, plan: PrecisionPlan) -> None:
    """Write each decision on its node, so that converting the result again keeps it."""
    for decision in plan.decisions:
        properties = index.nodes[decision.node_id].metadata_props
        if decision.format != "none" and not _signed(properties):
            properties[f"{PROVENANCE}.format"] = decision.format


def _signed(properties: Mapping[str, str]) -> bool:
    return any(f"{PROVENANCE}.{key}" in properties for key in ("format", "zone")) or (
        properties.get(f"{PROVENANCE}.rule") == "cast"
    )


def _drop_unread(index: ModelIndex) -> None:
    """Remove constants that the given model read and nobody reads now."""
    for value_id in index.constants:
        value = index.values[value_id]
        had_readers = bool(index.readers[value_id] or index.leaves[value_id])
        if not had_readers or value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        producer = value.producer()
        if producer is not None and isinstance(producer.graph, ir.Graph):
            producer.graph.remove(producer)
        elif producer is None and value.name:
            graph = index.scopes[index.value_scope[value_id]].graph
            graph.initializers.pop(value.name, None)


def _has_lone_initializers(model: ir.Model) -> bool:
    inputs = {v.name for v in model.graph.inputs}
    return any(name not in inputs for name in model.graph.initializers)
