"""Reading an ONNX file: bytes to an ``onnx_ir.Model`` that the stages can work on.

Weights in external data stay memory-mapped.  Model-local functions are inlined by ONNX's own inliner, because
each call gets decisions of its own; sparse initializers become dense.  What onnx_ir cannot carry is kept beside
the model or named as dropped.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from converter.errors import InputError, ModelError
from converter.graph import ModelIndex, index_model
from converter.operators import OperatorCatalog, canonical_domain
from converter.source.external_data import check_external_data
from converter.source.node_forms import check_nodes
from converter.source.preconditions import check_graph, check_opsets
from converter.source.tensor_sizes import check_tensors
from converter.source.type_propagation import propagate_types
from converter.types import Finding, ModelFacts

MAX_DENSE_BYTES = 2**30
"""A sparse initializer larger than this when dense is refused."""


@dataclass
class LoadedModel:
    """A model ready for the stages; ``training`` is what onnx_ir cannot carry, put back on saving."""

    index: ModelIndex
    facts: ModelFacts
    findings: list[Finding]
    training: list[onnx.TrainingInfoProto] = field(default_factory=list)
    base_dir: str = ""


def load(source: str | Path | onnx.ModelProto, catalog: OperatorCatalog) -> LoadedModel:
    """Read, check and type a model.

    Raises:
        ModelError: the file is missing, empty, no ONNX model, incomplete, or outside what ONNX allows.
    """
    proto, name, base_dir, digest, size = _read(source)
    nodes = len(proto.graph.node)
    check_opsets(proto)
    findings: list[Finding] = []
    _densify(proto, findings)
    proto = _inline_functions(proto, catalog, findings)
    training = list(proto.training_info)
    check_graph(proto)
    check_nodes(proto)
    check_tensors(proto)
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        text = f"'{name}' cannot be read as an ONNX graph: {_first_cause(error)}; check it with onnx.checker"
        raise ModelError(text) from error
    ir.external_data.set_base_dir(model.graph, base_dir)
    weights = check_external_data(model, base_dir, name)
    model.graph.sort()
    findings += propagate_types(model, catalog)
    index = index_model(model, catalog)
    facts = ModelFacts(
        name=name,
        sha256=digest,
        opset=index.opset,
        ir_version=proto.ir_version,
        bytes=size + weights,
        weight_bytes=sum(int(v.const_value.nbytes) for v in model.graph.initializers.values() if v.const_value),
        nodes=nodes,
        graph=proto.graph.name,
    )
    return LoadedModel(index, facts, findings, training, base_dir)


def _read(source: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str, str, str, int]:
    """Proto, display name, folder of external data, sha256 and size of the file."""
    if isinstance(source, onnx.ModelProto):
        content = source.SerializeToString()
        copy = onnx.ModelProto()
        copy.ParseFromString(content)
        return copy, copy.graph.name or "model", "", hashlib.sha256(content).hexdigest(), len(content)
    path = Path(source)
    content = _read_bytes(path)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(_not_onnx(path, content)) from error
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError(_not_onnx(path, content))
    return proto, path.name, str(path.resolve().parent), hashlib.sha256(content).hexdigest(), len(content)


def _read_bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"model '{path}' does not exist; check the path") from error
    except IsADirectoryError as error:
        raise ModelError(f"model '{path}' is a folder; give the .onnx file inside it") from error
    except OSError as error:
        raise ModelError(f"model '{path}' cannot be read: {error.strerror or error}") from error
    if not content:
        raise ModelError(f"model '{path}' is empty (0 bytes); export or download it again")
    return content


def _first_cause(error: BaseException) -> BaseException:
    """Where it began: onnx_ir wraps an error once per level of the graph."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


def _not_onnx(path: Path, content: bytes) -> str:
    if content.startswith(b"PK") and zipfile.is_zipfile(path):
        return f"'{path}' is a zip archive (PyTorch or NumPy?), not an ONNX file; give an .onnx file"
    start = content[:8].hex(" ")
    return f"'{path}' is not an ONNX model (its first bytes are {start}); give a file that onnx.load accepts"


def _densify(proto: onnx.ModelProto, findings: list[Finding]) -> None:
    """Turn sparse initializers and sparse Constants into dense tensors, in every graph."""
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse, findings))
        del graph.sparse_initializer[:]
        graphs += _densify_nodes(graph.node, findings)
    for function in proto.functions:
        graphs = _densify_nodes(function.node, findings)
        while graphs:
            graphs += _densify_nodes(graphs.pop().node, findings)


def _densify_nodes(nodes: Iterable[onnx.NodeProto], findings: list[Finding]) -> list[onnx.GraphProto]:
    """Densify sparse Constants among nodes; returns the bodies still to visit."""
    bodies: list[onnx.GraphProto] = []
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                attribute.sparse_tensor.values.name = attribute.sparse_tensor.values.name or node.output[0]
                dense = _dense(attribute.sparse_tensor, findings)
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)
            elif attribute.type == onnx.AttributeProto.GRAPH:
                bodies.append(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                bodies.extend(attribute.graphs)
    return bodies


def _dense(sparse: onnx.SparseTensorProto, findings: list[Finding]) -> onnx.TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    values = onnx.numpy_helper.to_array(sparse.values)
    size = int(np.prod(shape, dtype=np.float64)) * values.itemsize
    if size > MAX_DENSE_BYTES:
        raise ModelError(
            f"sparse initializer '{name}' would take {size:,} bytes when dense, the limit is {MAX_DENSE_BYTES:,}; "
            "store it dense or split it"
        )
    indices = onnx.numpy_helper.to_array(sparse.indices)
    if not _inside(indices, shape, len(values)):
        raise ModelError(
            f"sparse initializer '{name}' has indices that do not fit its shape {list(shape)}; export it again"
        )
    dense = np.zeros(shape, values.dtype)
    where = np.unravel_index(indices, shape) if indices.ndim == 1 else tuple(indices.T)
    dense[where] = values
    findings.append(Finding("densified", name, f"sparse initializer '{name}' is stored dense ({size:,} bytes)"))
    return onnx.numpy_helper.from_array(dense, name)


def _inside(indices: NDArray[np.int64], shape: tuple[int, ...], count: int) -> bool:
    """Whether there is one index per value, linear or by coordinates, and each lies inside the shape."""
    if len(indices) != count:
        return False
    if indices.ndim == 1:
        return bool(((indices >= 0) & (indices < np.prod(shape))).all())
    return indices.shape[1:] == (len(shape),) and bool(((indices >= 0) & (indices < np.array(shape))).all())


def _inline_functions(proto: onnx.ModelProto, catalog: OperatorCatalog, findings: list[Finding]) -> onnx.ModelProto:
    """Inline every model-local function; weights do not travel through the inliner."""
    if not proto.functions:
        return proto
    names = [f"{f.domain}::{f.name}" for f in proto.functions]
    _align_function_opsets(proto, catalog)
    _write_out_defaults(proto)
    _initializers_to_constants(proto)
    _import_function_domains(proto)
    weights = list(proto.graph.initializer)
    typed = {v.name for v in (*proto.graph.input, *proto.graph.value_info)}
    ours = {w.name for w in weights if w.name not in typed}
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(w if w.ByteSize() <= _TRAVELS else _stub(w) for w in weights)
    # The inliner's version conversion wants to know the type of every value.
    stated = (onnx.helper.make_tensor_value_info(w.name, w.data_type, w.dims) for w in weights if w.name in ours)
    proto.graph.value_info.extend(stated)
    training = list(proto.training_info)
    del proto.training_info[:]
    try:
        inlined = onnx.inliner.inline_local_functions(proto, convert_version=True)
    except Exception as error:
        raise ModelError(f"the model's functions ({', '.join(names)}) cannot be inlined: {error}") from error
    if inlined.functions:
        left = ", ".join(f"{f.domain}::{f.name}" for f in inlined.functions)
        raise ModelError(
            f"function {left} uses another opset than the model ({_opset(proto)}) and cannot be converted to it; "
            "inline it or export the model with one opset"
        )
    others = [v for v in inlined.graph.value_info if v.name not in ours]
    del inlined.graph.value_info[:]
    inlined.graph.value_info.extend(others)
    del inlined.graph.initializer[:]
    inlined.graph.initializer.extend(weights)
    inlined.training_info.extend(training)
    findings.append(Finding("inlined", "", f"{len(names)} model-local functions were inlined: {', '.join(names)}"))
    return inlined


_TRAVELS = 1024
"""Weights up to this many bytes go through the inliner: they may be shapes its version conversion looks at."""


def _stub(weight: onnx.TensorProto) -> onnx.TensorProto:
    return onnx.TensorProto(name=weight.name, data_type=weight.data_type, dims=weight.dims)


def _import_function_domains(proto: onnx.ModelProto) -> None:
    """Import what only functions import: their nodes become the model's."""
    have = {canonical_domain(o.domain) for o in proto.opset_import}
    for function in proto.functions:
        for imported in function.opset_import:
            if canonical_domain(imported.domain) not in have:
                have.add(canonical_domain(imported.domain))
                proto.opset_import.append(imported)


def _write_out_defaults(proto: onnx.ModelProto) -> None:
    """Give calls the attributes they leave to the function's default: the inliner would drop them."""
    defaults = {(f.domain, f.name, f.overload): list(f.attribute_proto) for f in proto.functions}
    if not any(defaults.values()):
        return
    graphs = [proto.graph]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs or nodes:
        if not nodes:
            nodes = list(graphs.pop().node)
            continue
        node = nodes.pop()
        given = {a.name for a in node.attribute}
        found = defaults.get((node.domain, node.op_type, node.overload), [])
        node.attribute.extend(a for a in found if a.name not in given)
        graphs += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]


def _initializers_to_constants(proto: onnx.ModelProto) -> None:
    """Turn initializers of bodies inside functions into Constant nodes: the inliner renames them inconsistently."""
    graphs = [a.g for f in proto.functions for n in f.node for a in n.attribute if a.HasField("g")]
    while graphs:
        body = graphs.pop()
        nodes = [onnx.helper.make_node("Constant", [], [t.name], value=t) for t in body.initializer]
        nodes += [onnx.NodeProto.FromString(n.SerializeToString()) for n in body.node]
        del body.node[:], body.initializer[:]
        body.node.extend(nodes)
        graphs += [a.g for n in body.node for a in n.attribute if a.HasField("g")]


def _opset(proto: onnx.ModelProto) -> int:
    return next((o.version for o in proto.opset_import if canonical_domain(o.domain) == ""), 0)


def _align_function_opsets(proto: onnx.ModelProto, catalog: OperatorCatalog) -> None:
    """Give functions the model's opset where every node in them means the same there."""
    opset = _opset(proto)
    for function in proto.functions:
        for imported in function.opset_import:
            if canonical_domain(imported.domain) != "" or imported.version == opset:
                continue
            if opset and all(_same_meaning(n, imported.version, opset, catalog) for n in function.node):
                imported.version = opset
            elif not opset:
                proto.opset_import.append(onnx.OperatorSetIdProto(domain="", version=imported.version))
                opset = imported.version


def _same_meaning(node: onnx.NodeProto, here: int, there: int, catalog: OperatorCatalog) -> bool:
    """Whether a node as written is the same operator version at both opsets, bodies included."""
    if canonical_domain(node.domain) == "":
        old, new = (catalog.find("", node.op_type, v) for v in (here, there))
        if old is None or new is None or old.since_version != new.since_version:
            return False
    bodies = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return all(_same_meaning(inner, here, there, catalog) for body in bodies for inner in body.node)


def restore(proto: onnx.ModelProto, training: list[onnx.TrainingInfoProto], changed: set[str]) -> list[Finding]:
    """Put ``training_info`` back into a model to be saved, unless it touches tensors whose type changed."""
    if not training:
        return []
    touched = {
        name
        for entry in training
        for binding in (*entry.initialization_binding, *entry.update_binding)
        for name in (binding.key, binding.value)
    } | {name for entry in training for node in entry.algorithm.node for name in node.input}
    if touched & changed:
        culprit = sorted(touched & changed)[0]
        message = f"training_info was dropped: it trains '{culprit}', which is no longer FP32"
        return [Finding("dropped", "training_info", message)]
    proto.training_info.extend(training)
    return []


def require_onnx(path: str | Path) -> None:
    """Raise InputError for paths that are clearly not ONNX files, before any heavy import."""
    if not Path(path).exists():
        raise InputError(f"model '{path}' does not exist; check the path")
