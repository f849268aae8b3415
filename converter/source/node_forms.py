"""Whether every standard node has the inputs, outputs and attribute types that its schema asks for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import onnx
import onnx.defs

from converter.errors import ModelError
from converter.operators import canonical_domain

_LENIENT = frozenset(("Resize", "Upsample"))
"""Exporters leave their region of interest out before the schema allows it, and runtimes take that."""


def check_nodes(proto: onnx.ModelProto) -> None:
    """Check nodes of every scope; operators that onnx does not know are left to those who run them.

    Raises:
        ModelError: naming the node and what does not fit.
    """
    opset = next((o.version for o in proto.opset_import if canonical_domain(o.domain) == ""), 0)
    functions = {f.name for f in proto.functions if canonical_domain(f.domain) == ""}
    for node in _nodes(proto.graph):
        texts = (node.op_type, node.domain, node.name, *node.input, *node.output)
        if not all(isinstance(text, str) for text in texts):
            raise ModelError("a name in the file is no UTF-8 text; the file is damaged, export the model again")
        standard = canonical_domain(node.domain) == "" and node.op_type not in functions
        schema = _schema(node.op_type, opset) if standard else None
        if standard and schema is None:
            _check_age(node, opset)
        if schema is not None:
            _check_counts(node, schema)
            _check_attributes(node, schema)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


@cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _check_age(node: onnx.NodeProto, opset: int) -> None:
    """Refuse an operator that came later than the opset that the model imports."""
    for version in range(opset + 1, onnx.defs.onnx_opset_version() + 1):
        if _schema(node.op_type, version) is not None:
            raise ModelError(
                f"{_title(node)} needs opset {version} and the model imports opset {opset}; export the model again at "
                f"opset {version} or newer"
            )


def _check_counts(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    for what, names, least, most in (
        ("inputs", node.input, schema.min_input, schema.max_input),
        ("outputs", node.output, 0, schema.max_output),  # what nobody reads is often left out
    ):
        if not least <= len(names) <= most:
            takes = f"{least}" if least == most else f"{least} to {most}" if most < 2**31 - 1 else f"{least} or more"
            raise ModelError(f"{_title(node)} has {len(names)} {what} and takes {takes}; the file is damaged")
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    for name, formal in zip(node.input, schema.inputs, strict=False):
        if not name and formal.option == single and node.op_type not in _LENIENT:
            raise ModelError(f"{_title(node)} leaves out its input '{formal.name}', which it needs; connect it")


def _check_attributes(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    for attribute in node.attribute:
        formal = schema.attributes.get(attribute.name)
        given = onnx.AttributeProto.AttributeType.Name(attribute.type)
        wanted = given if formal is None else str(formal.type).rpartition(".")[2]
        if given != wanted or attribute.type == onnx.AttributeProto.UNDEFINED:
            raise ModelError(
                f"attribute '{attribute.name}' of {_title(node)} is of type {given} and should be {wanted}; "
                "the file is damaged"
            )


def _title(node: onnx.NodeProto) -> str:
    return f"node '{node.name}' ({node.op_type})" if node.name else f"a {node.op_type} node"
