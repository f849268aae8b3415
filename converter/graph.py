"""An index over an ``onnx_ir.Model``: every node and value of every scope gets a number.

The graph itself stays ``onnx_ir.Model``; this is the order in which the stages talk about it.  Model-local
functions have been inlined before (``source.onnx_file``), so scopes are the main graph and the bodies of
If, Loop, Scan and SequenceMap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from converter.formats import FP32, format_of
from converter.operators import OperatorCatalog, OperatorSchema, canonical_domain


@dataclass(frozen=True, slots=True)
class Scope:
    """One graph: the main graph (id 0) or a body; ``owner`` is the node it belongs to."""

    id: int
    graph: ir.Graph
    parent: int | None
    owner: int | None
    attribute: str
    path: str


@dataclass(eq=False, slots=True)
class ModelIndex:
    """Numbers for nodes, values and scopes, with the edges between them.

    ``inputs[n]``/``outputs[n]`` hold value ids of node ``n`` (-1: left out).  ``readers[v]`` lists (node id,
    input position), ``leaves[v]`` lists (scope id, output position).  ``labels[n]`` is the node's name, or a
    made-up one for unnamed nodes; it is unique.
    """

    model: ir.Model
    catalog: OperatorCatalog
    scopes: list[Scope] = field(default_factory=list)
    nodes: list[ir.Node] = field(default_factory=list)
    node_scope: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    outputs: list[tuple[int, ...]] = field(default_factory=list)
    bodies: dict[int, dict[str, int]] = field(default_factory=dict)
    values: list[ir.Value] = field(default_factory=list)
    value_scope: list[int] = field(default_factory=list)
    types: list[str | None] = field(default_factory=list)
    producer: list[int] = field(default_factory=list)
    readers: list[list[tuple[int, int]]] = field(default_factory=list)
    leaves: list[list[tuple[int, int]]] = field(default_factory=list)
    constants: dict[int, ir.TensorProtocol] = field(default_factory=dict)
    graph_inputs: set[int] = field(default_factory=set)
    _ids: dict[ir.Value, int] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        return self.model.opset_imports.get("", self.model.opset_imports.get("ai.onnx", 0))

    def id_of(self, value: ir.Value | None) -> int:
        """The number of a value; -1 for a left-out input or output."""
        return -1 if value is None else self._ids.get(value, -1)

    def name_of(self, value_id: int) -> str:
        return self.values[value_id].name or ""

    def is_wide(self, value_id: int) -> bool:
        """Whether a value is a tensor of FP32."""
        return value_id >= 0 and self.types[value_id] == FP32.type_string

    def is_float(self, value_id: int) -> bool:
        """Whether a value is a tensor of FP32, FP16 or BF16."""
        return value_id >= 0 and format_of(self.types[value_id]) is not None

    def schema(self, node_id: int) -> OperatorSchema | None:
        node = self.nodes[node_id]
        domain = canonical_domain(node.domain)
        return self.catalog.find(domain, node.op_type, self.version(domain))

    def version(self, domain: str) -> int:
        """Imported version of a domain; 1 when the model forgot to say."""
        return self.opset if canonical_domain(domain) == "" else self.model.opset_imports.get(domain, 1)

    def nodes_of(self, scope_id: int) -> Iterator[int]:
        return (n for n, s in enumerate(self.node_scope) if s == scope_id)

    def enclosing(self, scope_id: int) -> Iterator[int]:
        """A scope and the scopes around it, inside out."""
        current: int | None = scope_id
        while current is not None:
            yield current
            current = self.scopes[current].parent


def index_model(model: ir.Model, catalog: OperatorCatalog) -> ModelIndex:
    """Number every scope, node and value of a model whose types are known; O(nodes + edges)."""
    index = ModelIndex(model=model, catalog=catalog)
    _add_scope(index, model.graph, parent=None, owner=None, attribute="", path="")
    _label_nodes(index)
    return index


def _add_value(index: ModelIndex, value: ir.Value, scope_id: int, producer: int) -> int:
    if value in index._ids:
        return index._ids[value]
    number = len(index.values)
    index._ids[value] = number
    index.values.append(value)
    index.value_scope.append(scope_id)
    index.types.append(type_string(value.type))
    index.producer.append(producer)
    index.readers.append([])
    index.leaves.append([])
    return number


def _add_scope(
    index: ModelIndex, graph: ir.Graph, parent: int | None, owner: int | None, attribute: str, path: str
) -> int:
    scope_id = len(index.scopes)
    index.scopes.append(Scope(scope_id, graph, parent, owner, attribute, path))
    for value in graph.inputs:
        index.graph_inputs.add(_add_value(index, value, scope_id, -1))
    for value in graph.initializers.values():
        number = _add_value(index, value, scope_id, -1)
        if number not in index.graph_inputs and value.const_value is not None:
            index.constants[number] = value.const_value
    for node in graph:
        _add_node(index, node, scope_id, path)
    for position, value in enumerate(graph.outputs):
        index.leaves[_add_value(index, value, scope_id, -1)].append((scope_id, position))
    return scope_id


def _add_node(index: ModelIndex, node: ir.Node, scope_id: int, path: str) -> None:
    node_id = len(index.nodes)
    index.nodes.append(node)
    index.node_scope.append(scope_id)
    index.labels.append(node.name or "")
    read = tuple(-1 if v is None else _add_value(index, v, scope_id, -1) for v in node.inputs)
    for position, number in enumerate(read):
        if number >= 0:
            index.readers[number].append((node_id, position))
    index.inputs.append(read)
    index.outputs.append(())
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH:
            inner = f"{path}{node.name or node.op_type}.{name}/"
            body = _add_scope(index, attribute.as_graph(), scope_id, node_id, name, inner)
            index.bodies.setdefault(node_id, {})[name] = body
    made = tuple(_add_value(index, v, scope_id, node_id) if v.name else -1 for v in node.outputs)
    index.outputs[node_id] = made
    constant = constant_tensor(node)
    if constant is not None and made and made[0] >= 0:
        index.constants[made[0]] = constant


def _label_nodes(index: ModelIndex) -> None:
    """Give unnamed nodes, and nodes that share a name, a label of their own."""
    taken: set[str] = set()
    for node_id, label in enumerate(index.labels):
        wanted = label or f"{index.nodes[node_id].op_type}#{node_id}"
        if wanted in taken:
            wanted = f"{wanted}#{node_id}"
        taken.add(wanted)
        index.labels[node_id] = wanted


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor a Constant node holds; None for other nodes and for strings and sparse tensors."""
    if node.op_type != "Constant" or canonical_domain(node.domain) != "":
        return None
    for name, dtype in (
        ("value_float", ir.DataType.FLOAT),
        ("value_floats", ir.DataType.FLOAT),
        ("value_int", ir.DataType.INT64),
        ("value_ints", ir.DataType.INT64),
    ):
        attribute = node.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            return ir.tensor(attribute.value, dtype=dtype)
    attribute = node.attributes.get("value")
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
        return None
    tensor: ir.TensorProtocol = attribute.value  # as_tensor() checks a protocol of thirty members each time
    return tensor


_ELEMENT_NAMES = {
    ir.DataType.FLOAT: "float",
    ir.DataType.DOUBLE: "double",
    ir.DataType.STRING: "string",
    ir.DataType.BOOL: "bool",
}


def element_name(dtype: ir.DataType) -> str:
    """The name ONNX type strings use for an element type (``float``, ``int64``, ``float8e4m3fn``)."""
    return _ELEMENT_NAMES.get(dtype, dtype.name.lower())


_TENSOR_STRINGS = {d: None if d == ir.DataType.UNDEFINED else f"tensor({element_name(d)})" for d in ir.DataType}


def type_string(kind: ir.TypeProtocol | None) -> str | None:
    """The ONNX type string of an onnx_ir type; None when the type is not known."""
    if type(kind) is ir.TensorType:  # nearly all of them; isinstance on onnx_ir's protocols is slow
        return _TENSOR_STRINGS[kind.dtype]
    if kind is None:
        return None
    if isinstance(kind, ir.SequenceType):
        inner = type_string(kind.elem_type)
        return None if inner is None else f"seq({inner})"
    if isinstance(kind, ir.OptionalType):
        inner = type_string(kind.elem_type)
        return None if inner is None else f"optional({inner})"
    if kind.dtype == ir.DataType.UNDEFINED:
        return None
    if isinstance(kind, ir.SparseTensorType):
        return f"sparse_tensor({element_name(kind.dtype)})"
    return f"tensor({element_name(kind.dtype)})"


_BY_NAME = {element_name(d): d for d in ir.DataType}


def element_type(type_text: str | None) -> ir.DataType | None:
    """The element type at the bottom of a type string, through sequences and optionals."""
    if type_text is None:
        return None
    return _BY_NAME.get(type_text.rstrip(")").rsplit("(", 1)[-1])


def parse_type(text: str) -> ir.TypeProtocol:
    """The onnx_ir type of an ONNX type string."""
    head, _, rest = text.partition("(")
    inner = rest[:-1]
    if head == "seq":
        return ir.SequenceType(parse_type(inner))
    if head == "optional":
        return ir.OptionalType(parse_type(inner))
    if head == "sparse_tensor":
        return ir.SparseTensorType(_BY_NAME[inner])
    return ir.TensorType(_BY_NAME[inner])


_FLOATS = frozenset(("float", "float16", "bfloat16", "double"))


def holds_floats(type_text: str | None) -> bool:
    """Whether a type is a tensor of floats, or a sequence or optional of such."""
    return type_text is not None and type_text.rstrip(")").rpartition("(")[2] in _FLOATS
