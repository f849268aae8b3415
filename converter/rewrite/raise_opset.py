"""Raise the standard operator set of a model, bodies included: a pre-pass, before anything is observed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx.helper
import onnx_ir as ir
from onnx_ir.passes.common.shape_inference import ShapeInferencePass

from converter.operators import OperatorCatalog, canonical_domain
from converter.rewrite.adapters import ADAPTERS, CannotAdapt, Site


def raise_opset(model: ir.Model, target: int, catalog: OperatorCatalog) -> bool:
    """Raise a model in place; returns whether any node had to be adapted (False: the same text means the same).

    Raises:
        CannotAdapt: a node has no equal at the target; the model is then half raised and of no use.
    """
    have = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
    raising = _Raising(model, catalog)
    for version in range(have + 1, target + 1):
        raising.step(model.graph, version)
    model.opset_imports.pop("ai.onnx", None)
    model.opset_imports[""] = target
    wanted = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", target)])
    model.ir_version = max(model.ir_version or 0, wanted)
    return raising.adapted


_FLATTENING = frozenset(("Softmax", "LogSoftmax", "Hardmax"))
"""Operators whose adapter is simpler when it knows the rank of what they read."""


def _operators(model: ir.Model) -> set[str]:
    return {node.op_type for graph in (model.graph, *model.graph.subgraphs()) for node in graph}


def inferred_ranks(model: ir.Model) -> dict[ir.Value, int]:
    """Ranks by onnx's shape inference, large weights left out; the model keeps the shapes it states."""
    values = [v for graph in (model.graph, *model.graph.subgraphs()) for v in _values(graph)]
    stated = {v: v.shape for v in values}
    with _silenced("onnx_ir.passes.common.shape_inference"):  # without ranks the adapter works all the same
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=False)(model)
    ranks = {v: len(v.shape) for v in values if v.shape is not None}
    for value, shape in stated.items():
        value.shape = shape
    return ranks


@contextmanager
def _silenced(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


class _Raising:
    def __init__(self, model: ir.Model, catalog: OperatorCatalog) -> None:
        self.catalog = catalog
        self.adapted = False
        self.ranks = inferred_ranks(model) if _FLATTENING & _operators(model) else {}
        self.names: set[str] = set()
        for graph in (model.graph, *model.graph.subgraphs()):
            self.names |= {v.name or "" for v in (*graph.inputs, *graph.initializers.values())}
            for node in graph:
                self.names |= {node.name or "", *(v.name or "" for v in node.outputs)}

    def fresh(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names.add(name)
        return name

    def step(self, graph: ir.Graph, version: int) -> None:
        """Raise every node of a graph by one version."""
        for node in list(graph):
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    self.step(attribute.as_graph(), version)
            if canonical_domain(node.domain) == "":
                self._node(node, version)

    def _node(self, node: ir.Node, version: int) -> None:
        adapter = ADAPTERS.get((node.op_type, version))
        if adapter is not None:
            adapter(Site(node, self.fresh, self.ranks))
            self.adapted = True
        schema = self.catalog.find("", node.op_type, version)
        if schema is None or schema.deprecated:
            raise CannotAdapt(f"operator {node.op_type} of node '{node.name}' ended before opset {version}")
        unknown = [name for name in node.attributes if name not in schema.attributes]
        if unknown and schema.since_version == version:
            raise CannotAdapt(f"attribute '{unknown[0]}' of {node.op_type} ended with opset {version}")
