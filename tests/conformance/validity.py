"""What must hold of every converted model, whatever was converted: the one helper behind all conformance tests."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from converter.types import RAISED_OPSET
from tests.conformance.emulation import (
    NARROW,
    Types,
    all_nodes,
    bodies,
    element_of,
    inlined,
    is_tensor,
    scoped_types,
    scopes,
)

FLOATS = NARROW | {TensorProto.FLOAT, TensorProto.DOUBLE}


def faults(given: ModelProto, made: ModelProto, folder: str | None = None) -> list[str]:
    """Everything that is wrong with a conversion as a graph; an empty list when nothing is.

    ``folder`` is where external data of ``made`` lies.
    """
    found: list[str] = []
    for check in (_checker, _strict_inference, _order_and_names, _declared_types, _casts, _dangling):
        problems = list(check(made, folder))
        if problems:  # what was wrong with the given model already is not the conversion's fault
            before = set(check(given, folder))
            problems = [problem for problem in problems if problem not in before]
        found += [f"{check.__name__.strip('_')}: {problem}" for problem in problems]
    for compare in (_interface, _untouched, _functions):
        found += [f"{compare.__name__.strip('_')}: {problem}" for problem in compare(given, made)]
    return found


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _checker(made: ModelProto, folder: str | None) -> Iterator[str]:
    try:
        if folder is None:
            onnx.checker.check_model(made, full_check=True)
        else:
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".onnx") as file:
                Path(file.name).write_bytes(made.SerializeToString())
                onnx.checker.check_model(file.name, full_check=True)
    except Exception as error:
        yield _one_line(error)


def _strict_inference(made: ModelProto, folder: str | None) -> Iterator[str]:
    del folder
    try:
        onnx.shape_inference.infer_shapes(made, check_type=True, strict_mode=True)
    except Exception as error:
        yield _one_line(error)


def _order_and_names(made: ModelProto, folder: str | None) -> Iterator[str]:
    """Topological order in every scope, and value names that are unique over a scope and all around it."""
    del folder
    yield from _walk(made.graph, frozenset())
    nodes = Counter(node.name for _, node in all_nodes(made) if node.name)
    yield from (f"{count} nodes are called '{name}'" for name, count in nodes.items() if count > 1)


def _walk(graph: GraphProto, outer: frozenset[str]) -> Iterator[str]:
    inputs = {v.name for v in graph.input}
    have = inputs | {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    yield from (f"'{name}' is shadowed by a body" for name in sorted(have & outer))
    for node in graph.node:
        missing = [name for name in node.input if name and name not in have | outer]
        if missing:
            yield f"node '{node.name}' ({node.op_type}) reads '{missing[0]}' before it is made"
        for body in bodies(node):
            yield from _walk(body, outer | have)
        for name in node.output:
            if name and name in have | outer:
                yield f"'{name}' is made twice"
            have.add(name)
    yield from (f"output '{v.name}' is never made" for v in graph.output if v.name not in have | outer)


def _declared_types(made: ModelProto, folder: str | None) -> Iterator[str]:
    """Every value has a type in the file, and onnx's inference, from nothing, finds no other."""
    del folder
    declared = inlined(made)
    bare = ModelProto()
    bare.CopyFrom(declared)
    for graph in scopes(bare.graph):
        del graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(bare)
    pairs = zip(scoped_types(declared, infer=False), scoped_types(inferred, infer=False), strict=True)
    for (graph, said), (_, found) in pairs:
        yield from _compare_types(graph, said, found)


def _compare_types(graph: GraphProto, said: Types, found: Types) -> Iterator[str]:
    for node in graph.node:
        for name in node.output:
            if name and name not in said:
                yield f"'{name}' of {node.op_type} has no type in the file"
            elif name in found and not _same_type(said[name], found[name]):
                yield f"'{name}' is declared {_show(said[name])} and is {_show(found[name])}"


def _same_type(a: TypeProto, b: TypeProto) -> bool:
    return a.WhichOneof("value") == b.WhichOneof("value") and element_of(a) == element_of(b)


def _show(kind: TypeProto) -> str:
    return f"{kind.WhichOneof('value')}({element_of(kind)})"


def _casts(made: ModelProto, folder: str | None) -> Iterator[str]:
    """One of our Casts per value and target in a scope, and none that undoes another of ours."""
    del folder
    for graph in scopes(made.graph):
        ours = [n for n in graph.node if n.op_type == "Cast" and _provenance(n, "rule") == "cast"]
        pairs = Counter((n.input[0], next(a.i for a in n.attribute if a.name == "to")) for n in ours)
        yield from (f"'{name}' is cast {k} times to type {to}" for (name, to), k in pairs.items() if k > 1)
        results = {n.output[0] for n in ours}
        yield from (f"our cast '{n.name}' reads another of ours" for n in ours if n.input[0] in results)


def _provenance(node: NodeProto, key: str) -> str:
    return next((p.value for p in node.metadata_props if p.key == f"narrowcast.{key}"), "")


def _dangling(made: ModelProto, folder: str | None) -> Iterator[str]:
    """Nothing we inserted is without a reader."""
    del folder
    read = {name for _, node in all_nodes(made) for name in node.input}
    read |= {v.name for graph in scopes(made.graph) for v in graph.output}
    for _, node in all_nodes(made):
        if _provenance(node, "rule") not in ("", RAISED_OPSET) and not any(name in read for name in node.output):
            yield f"our node '{node.name}' ({node.op_type}) has no reader"


def _interface(given: ModelProto, made: ModelProto) -> Iterator[str]:
    for side in ("input", "output"):
        before, after = list(getattr(given.graph, side)), list(getattr(made.graph, side))
        if [v.name for v in before] != [v.name for v in after]:
            yield f"{side}s are {[v.name for v in after]} instead of {[v.name for v in before]}"
            continue
        for old, new in zip(before, after, strict=True):
            if not _same_type(old.type, new.type):
                yield f"{side} '{old.name}' is {_show(new.type)} instead of {_show(old.type)}"
            elif is_tensor(old.type):
                yield from _shapes(side, old.name, old.type.tensor_type, new.type.tensor_type)
    defaults = {t.name for t in given.graph.initializer} & {v.name for v in given.graph.input}
    lost = defaults - {t.name for t in made.graph.initializer}
    yield from (f"input '{name}' lost its default" for name in sorted(lost))


def _shapes(side: str, name: str, old: TypeProto.Tensor, new: TypeProto.Tensor) -> Iterator[str]:
    if not old.HasField("shape"):
        return
    before = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in old.shape.dim]
    after = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in new.shape.dim]
    if before != after or not new.HasField("shape"):
        yield f"{side} '{name}' has shape {after} instead of {before}"


def _untouched(given: ModelProto, made: ModelProto) -> Iterator[str]:
    """Integers, booleans, strings and doubles hold what they held."""
    kept: dict[str, list[TensorProto]] = {}
    for graph in scopes(made.graph):
        for tensor in graph.initializer:
            kept.setdefault(tensor.name, []).append(tensor)
    for graph in scopes(inlined(given).graph):
        for tensor in graph.initializer:
            if tensor.data_type in NARROW | {TensorProto.FLOAT} or tensor.external_data:
                continue
            after = kept.get(tensor.name, [])
            if after and not any(t.data_type == tensor.data_type and _equal(tensor, t) for t in after):
                yield f"initializer '{tensor.name}' changed"


def _equal(a: TensorProto, b: TensorProto) -> bool:
    left, right = (onnx.numpy_helper.to_array(t) for t in (a, b))
    return (
        left.shape == right.shape and left.tobytes() == right.tobytes()
        if left.dtype != object
        else bool(np.array_equal(left, right))
    )


def _functions(given: ModelProto, made: ModelProto) -> Iterator[str]:
    """Operator sets stay, the standard one may only grow; nothing of the user's is renamed."""
    before = {o.domain: o.version for o in given.opset_import}
    after = {o.domain: o.version for o in made.opset_import}
    local = {f.domain for f in given.functions}
    for domain, version in before.items():
        used = any(node.domain == domain for _, node in all_nodes(made))
        if after.get(domain, 0) < version and domain not in local and (used or domain == ""):
            yield f"operator set '{domain}' {version} became {after.get(domain)}"
