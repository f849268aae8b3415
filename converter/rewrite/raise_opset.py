"""Raise the standard operator set of a model, bodies included: a pre-pass, before anything is observed."""

from __future__ import annotations

import onnx.helper
import onnx_ir as ir

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


class _Raising:
    def __init__(self, model: ir.Model, catalog: OperatorCatalog) -> None:
        self.catalog = catalog
        self.adapted = False
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
            adapter(Site(node, self.fresh))
            self.adapted = True
        schema = self.catalog.find("", node.op_type, version)
        if schema is None or schema.deprecated:
            raise CannotAdapt(f"operator {node.op_type} of node '{node.name}' ended before opset {version}")
        unknown = [name for name in node.attributes if name not in schema.attributes]
        if unknown and schema.since_version == version:
            raise CannotAdapt(f"attribute '{unknown[0]}' of {node.op_type} ended with opset {version}")
