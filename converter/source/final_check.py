"""ONNX's own word on a model: the full checker with strict type and shape inference, without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import onnx.checker
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir

SMALL_BYTES = 1024
"""Constants up to this size may decide shapes and stay; larger ones are shown to the checker as inputs."""

_NEED_TYPED_INPUTS: Final = frozenset(("EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"))
"""Operators whose inference in onnx 1.23 reads a null pointer where the type of their input is not known."""
_UNCHECKED: Final = "narrowcast.unchecked"


def checker_problem(model: ir.Model) -> str | None:
    """The first complaint of ``onnx.checker`` or of strict inference; None for a valid model.

    Weights are neither read nor copied.
    """
    with _without_weights(model):
        proto = ir.to_proto(model)
    _hide_what_crashes(proto)
    try:
        onnx.checker.check_model(proto, full_check=True)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:
        return " ".join(str(error).split())[:300]
    return None


def _hide_what_crashes(proto: onnx.ModelProto) -> None:
    """Behind operators that onnx does not know no type is known; the checker then must not see some others."""
    nodes = [*_nodes(proto.graph), *(n for function in proto.functions for n in _nodes(function))]
    known = {(f.domain, f.name) for f in proto.functions}
    foreign = any((n.domain, n.op_type) not in known and not onnx.defs.has(n.op_type, n.domain) for n in nodes)
    hidden = [n for n in nodes if n.op_type in _NEED_TYPED_INPUTS and n.domain in ("", "ai.onnx.ml")] if foreign else []
    for node in hidden:
        node.domain = _UNCHECKED
    if hidden:
        for imports in (proto.opset_import, *(f.opset_import for f in proto.functions)):
            imports.add(domain=_UNCHECKED, version=1)


def _nodes(holder: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes, those of bodies included."""
    for node in holder.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


@contextmanager
def _without_weights(model: ir.Model) -> Iterator[None]:
    """Show large initializers of the main graph as inputs for a while."""
    graph = model.graph
    held = dict(graph.initializers)
    taken = {v.name for v in graph.inputs}
    large = [
        v
        for v in held.values()
        if v.const_value is not None and v.const_value.nbytes > SMALL_BYTES and not v.is_graph_output()
    ]
    count = len(graph.inputs)
    for value in large:
        del graph.initializers[value.name or ""]
    graph.inputs.extend(v for v in large if v.name not in taken)
    try:
        yield
    finally:
        del graph.inputs[count:]
        graph.initializers.clear()
        graph.initializers.update(held)


def forget_inner_shapes(model: ir.Model) -> None:
    """Drop the stated shapes of everything but inputs, outputs and constants: old ones may be wrong."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in graph:
            for value in node.outputs:
                if not value.is_graph_output():
                    value.shape = None
