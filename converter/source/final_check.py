"""ONNX's own word on a model: the full checker with strict type and shape inference, without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx.checker
import onnx.shape_inference
import onnx_ir as ir

SMALL_BYTES = 1024
"""Constants up to this size may decide shapes and stay; larger ones are shown to the checker as inputs."""


def checker_problem(model: ir.Model) -> str | None:
    """The first complaint of ``onnx.checker`` or of strict inference; None for a valid model.

    Weights are neither read nor copied.
    """
    with _without_weights(model):
        proto = ir.to_proto(model)
    try:
        onnx.checker.check_model(proto, full_check=True)
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except Exception as error:
        return " ".join(str(error).split())[:300]
    return None


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
