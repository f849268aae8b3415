"""Types for every value in every scope, from operator schemas; shapes and weights are never looked at.

Declared types (``value_info``) count only where no schema speaks: old entries are often stale.  Corrections
of such entries are returned as findings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from converter.errors import ModelError
from converter.formats import FP32
from converter.graph import constant_tensor, element_name, parse_type, type_string
from converter.operators import OperatorCatalog, OperatorSchema, canonical_domain
from converter.types import Finding

Types = list[str | None]
_INT64, _BOOL = "tensor(int64)", "tensor(bool)"


def propagate_types(model: ir.Model, catalog: OperatorCatalog) -> list[Finding]:
    """Set ``value.type`` on every value of the model; returns what had to be corrected.

    Raises:
        ModelError: a graph output is declared with another type than the nodes make.
    """
    propagation = _Propagation(model, catalog)
    propagation.scope(model.graph, path="")
    return propagation.findings


class _Propagation:
    def __init__(self, model: ir.Model, catalog: OperatorCatalog) -> None:
        self.opsets = dict(model.opset_imports)
        self.catalog = catalog
        self.findings: list[Finding] = []

    def scope(self, graph: ir.Graph, path: str, given: Sequence[str | None] = ()) -> Types:
        """Type one graph; ``given`` are the types of its inputs where the owner dictates them."""
        for position, value in enumerate(graph.inputs):
            if position < len(given) and given[position] is not None:
                self._set(value, given[position])
        for value in graph.initializers.values():
            if value.const_value is not None:
                self._set(value, f"tensor({element_name(value.const_value.dtype)})")
        declared = {value: type_string(value.type) for value in graph.outputs}
        for node in graph:
            self.node(node, path)
        for value, kind in declared.items():
            self._check_output(value, kind, path)
        return [type_string(v.type) for v in graph.outputs]

    def node(self, node: ir.Node, path: str) -> None:
        types = self._output_types(node, [None if v is None else type_string(v.type) for v in node.inputs], path)
        for value, kind in zip(node.outputs, types, strict=False):
            if value.name:
                self._set(value, kind, node)

    def _set(self, value: ir.Value, kind: str | None, node: ir.Node | None = None) -> None:
        if kind is None or kind == type_string(value.type):
            return
        if value.type is not None and node is not None and type_string(value.type) is not None:
            self.findings.append(
                Finding(
                    "stale",
                    value.name or "",
                    f"value_info declares {type_string(value.type)}, node {node.name or node.op_type} makes {kind}; "
                    "the declaration was corrected",
                )
            )
        value.type = parse_type(kind)

    def _check_output(self, value: ir.Value, declared: str | None, path: str) -> None:
        made = type_string(value.type)
        if declared is not None and made is not None and declared != made:
            raise ModelError(
                f"output '{value.name}' of {path or 'the main graph'} is declared as {declared}, but the graph makes "
                f"{made}; correct the declaration or add a Cast"
            )

    def _output_types(self, node: ir.Node, inputs: Types, path: str) -> Types:
        if canonical_domain(node.domain) == "":
            structured = _STRUCTURED.get(node.op_type)
            if structured is not None:
                return structured(self, node, inputs, path)
            special = _SPECIAL.get(node.op_type)
            if special is not None:
                found = special(node, inputs)
                if found is not None:
                    return found
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.GRAPH:
                self.scope(attribute.as_graph(), f"{path}{node.name or node.op_type}.{name}/")
        version = self.opsets.get(canonical_domain(node.domain), self.opsets.get("ai.onnx", 1))
        schema = self.catalog.find(node.domain, node.op_type, version)
        return [None] * len(node.outputs) if schema is None else bind_outputs(schema, inputs, len(node.outputs))

    def body(self, node: ir.Node, attribute: str, given: Sequence[str | None], path: str) -> Types:
        graph = node.attributes[attribute].as_graph()
        return self.scope(graph, f"{path}{node.name or node.op_type}.{attribute}/", given)


def bind_outputs(schema: OperatorSchema, inputs: Types, count: int) -> Types:
    """Output types of a node from the types of its inputs, by the schema's type variables."""
    bound: dict[str, str] = {}
    for position, kind in enumerate(inputs):
        port = schema.input_port(position)
        if port is not None and kind is not None and (port.homogeneous or not port.variadic):
            bound.setdefault(port.type_var, kind)
    types: Types = []
    for position in range(count):
        port = schema.output_port(position)
        if port is None:
            types.append(None)
            continue
        allowed = schema.type_vars.get(port.type_var)
        if port.type_var in bound:
            types.append(bound[port.type_var])
        elif allowed is None:
            types.append(port.type_var if "(" in port.type_var else None)
        else:
            types.append(next(iter(allowed)) if len(allowed) == 1 else None)
    return types


def _if_types(run: _Propagation, node: ir.Node, inputs: Types, path: str) -> Types:
    del inputs
    then = run.body(node, "then_branch", (), path)
    other = run.body(node, "else_branch", (), path)
    return [a if a is not None else b for a, b in zip(then, other, strict=False)]


def _loop_types(run: _Propagation, node: ir.Node, inputs: Types, path: str) -> Types:
    states = inputs[2:]
    made = run.body(node, "body", [_INT64, _BOOL, *states], path)[1:]
    return [m if m is not None else s for s, m in zip(states, made, strict=False)] + made[len(states) :]


def _scan_types(run: _Propagation, node: ir.Node, inputs: Types, path: str) -> Types:
    first = 1 if run.opsets.get("", 0) < 9 else 0
    return run.body(node, "body", inputs[first:], path)


def _sequence_map_types(run: _Propagation, node: ir.Node, inputs: Types, path: str) -> Types:
    made = run.body(node, "body", [element_of(kind) or kind for kind in inputs], path)
    return [None if kind is None else f"seq({kind})" for kind in made]


def element_of(kind: str | None) -> str | None:
    """The element of a sequence or optional type string; None for a tensor."""
    if kind is not None and kind.startswith(("seq(", "optional(")):
        return kind.partition("(")[2][:-1]
    return None


_STRUCTURED: dict[str, Callable[[_Propagation, ir.Node, Types, str], Types]] = {
    "If": _if_types,
    "Loop": _loop_types,
    "Scan": _scan_types,
    "SequenceMap": _sequence_map_types,
}


def tensor_of(number: int) -> str | None:
    """The type string of a tensor of the element type with this number; None for 0 (undefined)."""
    return f"tensor({element_name(ir.DataType(number))})" if number else None


def _int(node: ir.Node, name: str, default: int = 0) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_int()


def _constant(node: ir.Node, inputs: Types) -> Types | None:
    del inputs
    tensor = constant_tensor(node)
    if tensor is not None:
        return [f"tensor({element_name(tensor.dtype)})"]
    if "sparse_value" in node.attributes:
        return [FP32.type_string]
    return ["tensor(string)"] if {"value_string", "value_strings"} & set(node.attributes) else None


def _constant_of_shape(node: ir.Node, inputs: Types) -> Types:
    del inputs
    value = node.attributes.get("value")
    return [FP32.type_string if value is None else f"tensor({element_name(value.as_tensor().dtype)})"]


def _by_attribute(name: str, default: int) -> Callable[[ir.Node, Types], Types | None]:
    def types(node: ir.Node, inputs: Types) -> Types | None:
        del inputs
        return [tensor_of(_int(node, name, default))]

    return types


def _like_input(node: ir.Node, inputs: Types) -> Types:
    return [tensor_of(_int(node, "dtype")) or inputs[0]]


def _quantize(node: ir.Node, inputs: Types) -> Types:
    if len(inputs) > 2 and inputs[2] is not None:
        return [inputs[2]]
    return [tensor_of(_int(node, "output_dtype", int(ir.DataType.UINT8)))]


def _dequantize(node: ir.Node, inputs: Types) -> Types:
    return [tensor_of(_int(node, "output_dtype")) or inputs[1]]


def _layer_normalization(node: ir.Node, inputs: Types) -> Types:
    stash = tensor_of(_int(node, "stash_type", int(ir.DataType.FLOAT)))
    return [inputs[0], stash, stash][: len(node.outputs)]


def _optional(node: ir.Node, inputs: Types) -> Types | None:
    if inputs and inputs[0] is not None:
        return [f"optional({inputs[0]})"]
    declared = node.attributes.get("type")
    if declared is None:
        return None
    kind = type_string(declared.value.type)
    return [None if kind is None else f"optional({kind})"]


def _batch_normalization(node: ir.Node, inputs: Types) -> Types:
    """Running statistics come out in the type of the running statistics that go in."""
    return [inputs[0], inputs[3], inputs[4], inputs[3], inputs[4]][: len(node.outputs)]


_SPECIAL: dict[str, Callable[[ir.Node, Types], Types | None]] = {
    "Cast": _by_attribute("to", 0),
    "BitCast": _by_attribute("to", 0),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "RandomNormal": _by_attribute("dtype", 1),
    "RandomUniform": _by_attribute("dtype", 1),
    "Multinomial": _by_attribute("dtype", 6),
    "HannWindow": _by_attribute("output_datatype", 1),
    "HammingWindow": _by_attribute("output_datatype", 1),
    "BlackmanWindow": _by_attribute("output_datatype", 1),
    "MelWeightMatrix": _by_attribute("output_datatype", 1),
    "EyeLike": _like_input,
    "RandomNormalLike": _like_input,
    "RandomUniformLike": _like_input,
    "Bernoulli": _like_input,
    "SequenceEmpty": lambda node, _: [f"seq({tensor_of(_int(node, 'dtype', 1))})"],
    "SequenceConstruct": lambda _, inputs: [f"seq({inputs[0]})" if inputs and inputs[0] else None],
    "SplitToSequence": lambda _, inputs: [f"seq({inputs[0]})" if inputs[0] else None],
    "SequenceAt": lambda _, inputs: [element_of(inputs[0])],
    "ConcatFromSequence": lambda _, inputs: [element_of(inputs[0])],
    "Optional": _optional,
    "OptionalGetElement": lambda _, inputs: [
        element_of(inputs[0]) if (inputs[0] or "").startswith("optional(") else inputs[0]
    ],
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "LayerNormalization": _layer_normalization,
    "BatchNormalization": _batch_normalization,
}
