"""Models from ONNX text, and back: tests show their graphs before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from textwrap import dedent
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from numpy.typing import NDArray

from converter.graph import ModelIndex, type_string
from converter.operators import OperatorCatalog
from converter.runtime.session import contributed_schemas
from converter.source.onnx_file import LoadedModel, load

Array = NDArray[Any]


@cache
def catalog() -> OperatorCatalog:
    """Schemas of ONNX and ONNX Runtime, read once."""
    return OperatorCatalog(contributed_schemas())


def model(
    text: str,
    opset: int = 17,
    weights: Mapping[str, Array] | None = None,
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model from the text of its graph (and functions behind it); ``weights`` become initializers."""
    imports = ", ".join(f'"{d}" : {v}' for d, v in {"": opset, **(domains or {})}.items())
    written = max(4, onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)]))
    head = f"<ir_version: {written}, opset_import: [{imports}]>\n"
    proto = onnx.parser.parse_model(head + dedent(text))
    add_weights(proto, weights or {})
    return proto


def add_weights(proto: onnx.ModelProto, weights: Mapping[str, Array]) -> None:
    """Add arrays as initializers of the main graph."""
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())


def loaded(proto: onnx.ModelProto) -> LoadedModel:
    return load(proto, catalog())


def indexed(text: str, opset: int = 17, weights: Mapping[str, Array] | None = None, **more: Any) -> ModelIndex:
    """The index of a model from text."""
    return loaded(model(text, opset, weights, **more)).index


def value(index: ModelIndex, name: str) -> int:
    """The id of a value by name."""
    return next(v for v in range(len(index.values)) if index.name_of(v) == name)


def node(index: ModelIndex, name: str) -> int:
    """The id of a node by its label, or by the name of its first output."""
    if name in index.labels:
        return index.labels.index(name)
    return index.producer[value(index, name)]


def drawn(given: ir.Model | onnx.ModelProto) -> str:
    """A graph as text: one line per node, types beside names; node names and shapes are left out."""
    parsed = ir.from_proto(given) if isinstance(given, onnx.ModelProto) else given
    return "\n".join(_lines(parsed.graph, "")) + "\n"


def drawing(text: str) -> str:
    """An expected drawing as it stands indented in a test."""
    return dedent(text).strip() + "\n"


def _lines(graph: ir.Graph, indent: str) -> Iterator[str]:
    inputs = ", ".join(_typed(v) for v in graph.inputs)
    outputs = ", ".join(_typed(v) for v in graph.outputs)
    yield f"{indent}({inputs}) => ({outputs})"
    for initializer in graph.initializers.values():
        assert initializer.const_value is not None
        yield f"{indent}  {_typed(initializer)} = {_shown(initializer.const_value)}"
    for made in graph:
        left = ", ".join(_typed(v) if v.name else "" for v in made.outputs)
        domain = f"{made.domain}." if made.domain else ""
        plain = [a for a in made.attributes.values() if a.type != ir.AttributeType.GRAPH]
        attributes = ", ".join(f"{a.name}={_attribute(a)}" for a in plain)
        attributes = f"<{attributes}>" if attributes else ""
        right = ", ".join("" if v is None else v.name or "" for v in made.inputs)
        yield f"{indent}  {left} = {domain}{made.op_type}{attributes}({right})"
        for attribute in made.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield f"{indent}    {attribute.name}:"
                yield from _lines(attribute.as_graph(), indent + "    ")


def _typed(value: ir.Value) -> str:
    kind = type_string(value.type)
    return f"{value.name}: {kind.removeprefix('tensor(').removesuffix(')') if kind else '?'}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        return _shown(attribute.as_tensor())
    found = attribute.value
    return f"{found:g}" if isinstance(found, float) else str(found)


def _shown(tensor: ir.TensorProtocol) -> str:
    array = np.asarray(tensor.numpy())
    if array.size > 4:
        return f"[{'x'.join(map(str, array.shape))}]"
    if array.dtype.kind in "OSU":
        return str(array.tolist())
    return "{" + ", ".join(f"{float(x):g}" for x in array.reshape(-1)) + "}"
