"""A second emulator of narrow arithmetic, independent of the engine's interpreter.

A mixed model is rewritten so that ONNX Runtime's CPU provider runs it truthfully: every value that its own file
declares FP16 or BF16 is held as FP32 and sent through a pair of Casts right behind the node that makes it.  Types
come from the file and from onnx's inference, never from the engine.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

NARROW = frozenset((TensorProto.FLOAT16, TensorProto.BFLOAT16))
_TYPE_ATTRIBUTES = frozenset(("dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision"))

ort.set_default_logger_severity(4)


class UntypedValue(Exception):
    """A value whose type neither the file nor onnx knows."""


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that are attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def scopes(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and every body inside it, owners first."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from scopes(body)


def inlined(model: ModelProto) -> ModelProto:
    """The model without model-local functions; functions of another opset are taken to mean the same in the model's.

    onnx's inliner drops defaults of function attributes, so calls get them written out first.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    if not copy.functions:
        return copy
    opset = next(o.version for o in copy.opset_import if o.domain == "")
    defaults = {(f.domain, f.name): list(f.attribute_proto) for f in copy.functions}
    calls = [node for graph in scopes(copy.graph) for node in graph.node]
    calls += [node for f in copy.functions for node in _function_nodes(f)]
    for node in calls:
        given = {a.name for a in node.attribute}
        node.attribute.extend(a for a in defaults.get((node.domain, node.op_type), ()) if a.name not in given)
    for function in copy.functions:
        for imported in function.opset_import:
            imported.version = opset if imported.domain == "" else imported.version
            if imported.domain not in [o.domain for o in copy.opset_import]:
                copy.opset_import.append(imported)
    return onnx.inliner.inline_local_functions(copy)


def _function_nodes(function: onnx.FunctionProto) -> Iterator[NodeProto]:
    for node in function.node:
        yield node
        for body in bodies(node):
            for graph in scopes(body):
                yield from graph.node


def element_of(kind: TypeProto) -> int | None:
    """The element type at the bottom of a type; None when it is not said."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        return getattr(kind, which).elem_type or None
    if which in ("sequence_type", "optional_type"):
        return element_of(getattr(kind, which).elem_type)
    return None


def is_tensor(kind: TypeProto) -> bool:
    return kind.WhichOneof("value") == "tensor_type"


Types = dict[str, TypeProto]


def scoped_types(model: ModelProto, infer: bool = True) -> Iterator[tuple[GraphProto, Types]]:
    """Every graph of a model with the types of the names visible in it: declared, else inferred by onnx."""
    inferred = onnx.shape_inference.infer_shapes(model) if infer else model
    yield from _scoped(model.graph, inferred.graph, {})


def _scoped(graph: GraphProto, inferred: GraphProto, outer: Types) -> Iterator[tuple[GraphProto, Types]]:
    own: Types = {}
    for source in (graph, inferred):
        for value in (*source.input, *source.output, *source.value_info):
            if element_of(value.type) is not None:
                own.setdefault(value.name, value.type)
        for tensor in source.initializer:
            own.setdefault(tensor.name, onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
    visible = outer | own
    yield graph, visible
    for node, other in zip(graph.node, inferred.node, strict=True):
        for body, twin in zip(bodies(node), bodies(other), strict=True):
            yield from _scoped(body, twin, visible)


def holds_narrow(model: ModelProto) -> bool:
    """Whether any value or initializer is FP16 or BF16."""
    types = (kind for _, visible in scoped_types(model) for kind in visible.values())
    return any(element_of(kind) in NARROW for kind in types)


def _widen_type(kind: TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which == "tensor_type" and kind.tensor_type.elem_type in NARROW:
        kind.tensor_type.elem_type = TensorProto.FLOAT
    elif which in ("sequence_type", "optional_type"):
        _widen_type(getattr(kind, which).elem_type)


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        wide = np.asarray(onnx.numpy_helper.to_array(tensor), np.float32)
        tensor.CopyFrom(onnx.numpy_helper.from_array(wide, tensor.name))


def emulated(model: ModelProto) -> ModelProto:
    """The model with narrow values held as FP32 and rounded behind every node that makes them.

    Raises:
        UntypedValue: naming a value whose type nobody knows.
    """
    copy = inlined(model)
    if not holds_narrow(copy):
        return model
    counter = itertools.count()
    # Bodies before owners: replacing an owner's nodes replaces the bodies inside them.
    for graph, types in reversed(list(scoped_types(copy))):
        _emulate_graph(graph, types, counter)
    return copy


def _emulate_graph(graph: GraphProto, types: Mapping[str, TypeProto], counter: Iterator[int]) -> None:
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        _widen_type(value.type)
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    rounded: list[NodeProto] = []
    for node in graph.node:
        _widen_attributes(node)
        rounded.append(node)
        for position, name in enumerate(node.output):
            if not name:
                continue
            if name not in types:
                raise UntypedValue(f"value '{name}' of {node.op_type} has no type")
            element = element_of(types[name])
            if element in NARROW and is_tensor(types[name]):
                node.output[position] = f"{name}/exact{next(counter)}"
                rounded += _rounding(node.output[position], name, element, next(counter))
    copies = [NodeProto.FromString(node.SerializeToString()) for node in rounded]
    del graph.node[:]
    graph.node.extend(copies)


def _rounding(source: str, target: str, element: int | None, number: int) -> list[NodeProto]:
    middle = f"{target}/narrow{number}"
    return [
        onnx.helper.make_node("Cast", [source], [middle], to=element),
        onnx.helper.make_node("Cast", [middle], [target], to=TensorProto.FLOAT),
    ]


def _widen_attributes(node: NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _widen_tensor(attribute.t)
        elif attribute.type == AttributeProto.TYPE_PROTO:
            _widen_type(attribute.tp)
        elif attribute.type == AttributeProto.INT and attribute.i in NARROW and _names_a_type(node, attribute.name):
            attribute.i = TensorProto.FLOAT
            if node.op_type == "Cast":
                for extra in [a for a in node.attribute if a.name in ("saturate", "round_mode")]:
                    node.attribute.remove(extra)


def _names_a_type(node: NodeProto, attribute: str) -> bool:
    return attribute in _TYPE_ATTRIBUTES or (node.op_type == "Cast" and attribute == "to")


class Runnable:
    """A model in ONNX Runtime's CPU provider on one thread; ``optimise`` as a deployment would."""

    def __init__(self, model: ModelProto | str, optimise: bool = False) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        content = model if isinstance(model, str) else model.SerializeToString()
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name; ml_dtypes arrays for what NumPy itself lacks."""
        inputs = [*self._session.get_inputs(), *self._session.get_overridable_initializers()]
        given = {i.name: _as_typed(feeds[i.name], i.type) for i in inputs if i.name in feeds}
        names = [o.name for o in self._session.get_outputs()]
        tensors = all(o.type.startswith("tensor") for o in self._session.get_outputs())
        if tensors and all(isinstance(v, np.ndarray) and v.dtype.kind not in "OUS" for v in given.values()):
            native = {name: _native(value) for name, value in given.items()}
            made = self._session.run_with_ort_values(names, native)
            return {name: _plain(value) for name, value in zip(names, made, strict=True)}
        return dict(zip(names, self._session.run(names, given), strict=True))


def _as_typed(value: Any, kind: str) -> Any:
    if "seq(" in kind and value is not None:
        return [np.ascontiguousarray(element) for element in value]
    if kind == "tensor(float)" and value.dtype != np.float32:
        return np.asarray(value, np.float32)
    return np.asarray(value) if isinstance(value, np.generic) else value


def _native(value: Any) -> ort.OrtValue:
    """An ``OrtValue``; elements that NumPy lacks are copied in as ONNX stores them (4-bit ones in pairs)."""
    if value.dtype.type.__module__ == "numpy":
        return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    tensor = onnx.numpy_helper.from_array(value)
    native = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape), tensor.data_type)
    ctypes.memmove(native.data_ptr(), tensor.raw_data, len(tensor.raw_data))
    return native


def _plain(value: ort.OrtValue) -> Any:
    if value.data_type() == "tensor(string)":
        return value.numpy()
    content = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return onnx.numpy_helper.to_array(TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=content))


def all_nodes(model: ModelProto) -> Iterable[tuple[GraphProto, NodeProto]]:
    """Every node with the graph it stands in."""
    return ((graph, node) for graph in scopes(model.graph) for node in graph.node)
