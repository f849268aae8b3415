"""The grammar of a mixed model, checked after each pass and, with types, at the end.

Each pass must leave a graph that is sorted, whose names are unique over all scopes, whose edges lead somewhere
and whose inputs and outputs are what they were.  At the end types agree with every operator's schema.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from converter.errors import InternalError
from converter.graph import ModelIndex, type_string
from converter.operators import OperatorCatalog, canonical_domain


@dataclass(frozen=True, slots=True)
class Interface:
    """What callers of a model rely on: names and types of inputs and outputs."""

    inputs: tuple[tuple[str, str | None], ...]
    outputs: tuple[tuple[str, str | None], ...]


def interface(model: ir.Model) -> Interface:
    """The interface of a model as it stands."""
    return Interface(
        tuple((v.name or "", type_string(v.type)) for v in model.graph.inputs),
        tuple((v.name or "", type_string(v.type)) for v in model.graph.outputs),
    )


def narrowed(given: Interface, to: str) -> Interface:
    """The interface under ``--io-types narrow``: FP32 tensors in the narrow type."""

    def change(ports: tuple[tuple[str, str | None], ...]) -> tuple[tuple[str, str | None], ...]:
        return tuple((name, to if kind == "tensor(float)" else kind) for name, kind in ports)

    return Interface(change(given.inputs), change(given.outputs))


def check_structure(model: ir.Model, given: Interface, after: str) -> None:
    """Names, order and edges of every scope, and the names of inputs and outputs.

    Raises:
        InternalError: naming the pass and the culprit.
    """
    found = interface(model)
    for what, have, want in (("inputs", found.inputs, given.inputs), ("outputs", found.outputs, given.outputs)):
        if [n for n, _ in have] != [n for n, _ in want]:
            raise _broken(after, f"graph {what} are {[n for n, _ in have]} instead of {[n for n, _ in want]}")
    _Names(after).scope(model.graph)


def _broken(after: str, message: str) -> InternalError:
    return InternalError(f"after {after}: {message}; this is a bug in narrowcast")


class _Names:
    """Walks all scopes with what is visible; a body's additions go again when it ends.

    Inputs and initializers of a body may hide an outer name, as ONNX allows.
    """

    def __init__(self, after: str) -> None:
        self.after = after
        self.known: set[ir.Value] = set()
        self.names: set[str] = set()

    def scope(self, graph: ir.Graph) -> None:
        added: list[ir.Value] = []
        outer = self.names
        formal = list(dict.fromkeys((*graph.inputs, *graph.initializers.values())))
        self.names = outer - {v.name or "" for v in formal}
        for value in formal:
            self._add(value, added)
        self.names |= outer
        for node in graph:
            self._node(node, added)
        for value in graph.outputs:
            if value not in self.known:
                raise _broken(self.after, f"graph output '{value.name}' is never made")
        self.known.difference_update(added)
        self.names = outer

    def _node(self, node: ir.Node, added: list[ir.Value]) -> None:
        for value in node.inputs:
            if value is not None and value not in self.known:
                text = f"node '{node.name}' ({node.op_type}) reads '{value.name}' before it is made"
                raise _broken(self.after, text)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                self.scope(attribute.as_graph())
        for value in node.outputs:
            self._add(value, added)

    def _add(self, value: ir.Value, added: list[ir.Value]) -> None:
        if value.name:
            if value.name in self.names:
                raise _broken(self.after, f"value name '{value.name}' is made twice")
            self.names.add(value.name)
        self.known.add(value)
        added.append(value)


def check_types(index: ModelIndex, wanted: Interface) -> None:
    """Types of inputs and outputs, and of every node against its schema.

    ``index`` is of the rewritten model with types propagated anew.

    Raises:
        InternalError: naming the node, the port and both types.
    """
    found = interface(index.model)
    if found != wanted:
        raise _broken("the last pass", f"the interface is {found} instead of {wanted}")
    for node_id, node in enumerate(index.nodes):
        problem = _node_problem(index, index.catalog, node_id)
        if problem:
            raise _broken("the last pass", f"node '{node.name}' ({node.op_type}): {problem}")


def _node_problem(index: ModelIndex, catalog: OperatorCatalog, node_id: int) -> str | None:
    node = index.nodes[node_id]
    schema = catalog.find(node.domain, node.op_type, index.version(canonical_domain(node.domain)))
    if schema is None:
        return None
    bound: dict[str, str] = {}
    for side, values in (("input", index.inputs[node_id]), ("output", index.outputs[node_id])):
        for position, value_id in enumerate(values):
            kind = index.types[value_id] if value_id >= 0 else None
            port = schema.input_port(position) if side == "input" else schema.output_port(position)
            if kind is None or port is None:
                continue
            if not schema.allows(port.type_var, kind):
                return f"{side} {position} ('{index.name_of(value_id)}') is {kind}, which the schema does not allow"
            if port.variadic and not port.homogeneous:
                continue
            if port.type_var in schema.type_vars and bound.setdefault(port.type_var, kind) != kind:
                return f"{side} {position} ('{index.name_of(value_id)}') is {kind}, others there {bound[port.type_var]}"
    return None
