"""What a model must fulfil before anything is done with it, checked on the protobuf."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.defs

from converter.errors import ModelError
from converter.operators import canonical_domain

MIN_OPSET = 7
"""Older operator sets broadcast differently and lack FP16 in many schemas."""


class UnsupportedOpset(ModelError):
    """The standard operator set is older or newer than what can be converted."""

    code = "UNSUPPORTED_OPSET"


def check_opsets(proto: onnx.ModelProto) -> None:
    """Check the standard operator set's version.

    Raises:
        UnsupportedOpset: it is below 7 or newer than the installed onnx knows.
    """
    versions = {canonical_domain(o.domain): o.version for o in proto.opset_import}
    newest = onnx.defs.onnx_opset_version()
    opset = versions.get("")
    if opset is None:
        if any(canonical_domain(n.domain) == "" for n in proto.graph.node):
            raise UnsupportedOpset("the model imports no version of the standard operator set; export it again")
        return
    if opset < MIN_OPSET:
        raise UnsupportedOpset(
            f"the model uses opset {opset}; narrowcast needs at least {MIN_OPSET}. "
            "Raise it with onnx.version_converter or export it again"
        )
    if opset > newest:
        raise UnsupportedOpset(
            f"the model uses opset {opset}; the installed onnx {onnx.__version__} knows up to {newest}. Upgrade onnx "
            "or export with a lower opset"
        )


def check_graph(proto: onnx.ModelProto) -> None:
    """Check that every name read is made somewhere and made once.

    Raises:
        ModelError: naming the node and the value.
    """
    if not proto.graph.output:
        raise ModelError("the model has no outputs, so there is nothing to convert or compare; mark its outputs")
    _check_scope(proto.graph, frozenset())


def _check_scope(graph: onnx.GraphProto, outer: frozenset[str]) -> None:
    made: set[str] = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    made |= {v.name for v in graph.input}
    for node in graph.node:
        for name in node.output:
            if name and name in made:
                raise ModelError(
                    f"value '{name}' is made twice (again by {_title(node)}); each name may be made once: rename one"
                )
            made.add(name)
    visible = outer | made
    for node in graph.node:
        _check_reads(node, node.input, visible)
        for attribute in node.attribute:
            for body in (attribute.g,) if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                _check_scope(body, visible)
    for value in graph.output:
        if value.name not in visible:
            raise ModelError(f"output '{value.name}' of graph '{graph.name}' is never made; remove or connect it")


def _check_reads(node: onnx.NodeProto, names: Iterable[str], visible: frozenset[str]) -> None:
    for name in names:
        if name and name not in visible:
            raise ModelError(f"{_title(node)} reads '{name}', which nothing makes; the file is incomplete")


def _title(node: onnx.NodeProto) -> str:
    return f"node '{node.name}' ({node.op_type})" if node.name else f"a {node.op_type} node"
