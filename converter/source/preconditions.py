"""What a model must fulfil before anything is done with it, checked on the protobuf."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    """Check that every name read is made somewhere, made once, and made before it is needed.

    Raises:
        ModelError: naming the node and the value.
    """
    if not proto.graph.output:
        raise ModelError("the model has no outputs, so there is nothing to convert or compare; mark its outputs")
    for value in (*proto.graph.input, *proto.graph.output):
        if _holds_map(value.type):
            raise ModelError(
                f"'{value.name}' is a map, which narrowcast cannot carry; export the model without ZipMap "
                "(scikit-learn: options={'zipmap': False}), so that it gives a plain tensor"
            )
    opset = next((o.version for o in proto.opset_import if canonical_domain(o.domain) == ""), 0)
    _check_scope(proto.graph, frozenset(), frozenset(), opset)


def _holds_map(kind: onnx.TypeProto) -> bool:
    for wrapper in ("sequence_type", "optional_type"):
        if kind.HasField(wrapper):
            return _holds_map(getattr(kind, wrapper).elem_type)
    return bool(kind.HasField("map_type"))


def _check_scope(graph: onnx.GraphProto, outer: frozenset[str], taken: frozenset[str], opset: int) -> None:
    """A body's inputs and initializers may hide an outer name; what its nodes make may not.

    ``outer`` are all names around the scope, ``taken`` those that are made before its owner: a name may be made in
    a body and once more behind it.
    """
    made = _unique((v.name for v in graph.input), "input") | _unique((t.name for t in graph.initializer), "initializer")
    before: dict[int, frozenset[str]] = {}
    for position, node in enumerate(graph.node):
        if any(True for _ in _bodies(node)):
            before[position] = taken | made
        for name in node.output:
            if name and (name in made or name in taken):
                raise ModelError(
                    f"value '{name}' is made twice (again by {_title(node)}); each name may be made once: rename one"
                )
            made.add(name)
    visible = outer | made
    for position, node in enumerate(graph.node):
        _check_reads(node, node.input, visible)
        if canonical_domain(node.domain) == "" and node.op_type in _BODIES:
            _check_control_flow(node, opset)
        for body in _bodies(node):
            _check_scope(body, visible, before[position], opset)
    for value in graph.output:
        if value.name not in made:
            raise ModelError(f"output '{value.name}' of graph '{graph.name}' is never made; remove or connect it")
    _check_order(graph)


_BODIES = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
    "SequenceMap": ("body",),
}


def _check_control_flow(node: onnx.NodeProto, opset: int) -> None:
    """Check what running a node with bodies relies on: its bodies, and how many values go in and out of them."""
    graph = onnx.AttributeProto.GRAPH
    attributes = {a.name: a for a in node.attribute if a.type == graph or a.name not in _BODIES[node.op_type]}
    bodies = [attributes[name].g for name in _BODIES[node.op_type] if name in attributes]
    if len(bodies) < len(_BODIES[node.op_type]):
        raise ModelError(f"{_title(node)} lacks a body ({', '.join(_BODIES[node.op_type])}); the file is damaged")
    given, handed_out = len(node.input), 0
    if node.op_type == "If":
        given = 0 if given == 1 else -1
    elif node.op_type == "Loop":
        handed_out = 1
        given = given if given > 1 else -1
    elif node.op_type == "Scan":
        lengths = 1 if opset < 9 else 0  # Scan of opset 8 has sequence lengths in front
        given = given - lengths if "num_scan_inputs" in attributes else -1
    for body in bodies:
        if len(body.input) != given or len(body.output) < len(node.output) + handed_out:
            raise ModelError(
                f"{_title(node)} has {len(node.input)} inputs and {len(node.output)} outputs, which do not fit its "
                f"body '{body.name}' with {len(body.input)} and {len(body.output)}; the file is damaged"
            )


def _unique(names: Iterable[str], what: str) -> set[str]:
    found: set[str] = set()
    for name in names:
        if name in found:
            raise ModelError(f"{what} '{name}' stands there twice; each name may be made once: rename or remove one")
        found.add(name)
    return found


def _bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        yield from (attribute.g,) if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs


def _check_order(graph: onnx.GraphProto) -> None:
    """Check that no node waits for its own result; nodes may stand in any order."""
    makers = {name: k for k, node in enumerate(graph.node) for name in node.output if name}
    waits = [{makers[n] for n in _needs(node) if n in makers} for node in graph.node]
    readers: dict[int, list[int]] = {}
    for number, needed in enumerate(waits):
        for maker in needed:
            readers.setdefault(maker, []).append(number)
    ready = [k for k, needed in enumerate(waits) if not needed]
    while ready:
        done = ready.pop()
        for reader in readers.get(done, ()):
            waits[reader].discard(done)
            if not waits[reader]:
                ready.append(reader)
    stuck = next((k for k, needed in enumerate(waits) if needed), None)
    if stuck is not None:
        node = graph.node[_on_the_cycle(waits, stuck)]
        raise ModelError(
            f"the graph has a cycle: {_title(node)} needs its own result '{node.output[0]}'; the file is damaged"
        )


def _on_the_cycle(waits: list[set[int]], start: int) -> int:
    """A node on a cycle, found by walking from a node that waits to one it waits for."""
    seen: set[int] = set()
    current = start
    while current not in seen:
        seen.add(current)
        current = min(waits[current])
    return current


def _needs(node: onnx.NodeProto) -> Iterator[str]:
    """Names a node reads from its own scope, itself or from inside its bodies."""
    yield from node.input
    for body in _bodies(node):
        own = {v.name for v in body.input} | {t.name for t in body.initializer}
        own |= {name for inner in body.node for name in inner.output}
        yield from (name for inner in body.node for name in _needs(inner) if name not in own)


def _check_reads(node: onnx.NodeProto, names: Iterable[str], visible: frozenset[str]) -> None:
    for name in names:
        if name and name not in visible:
            raise ModelError(f"{_title(node)} reads '{name}', which nothing makes; the file is incomplete")


def _title(node: onnx.NodeProto) -> str:
    return f"node '{node.name}' ({node.op_type})" if node.name else f"a {node.op_type} node"
