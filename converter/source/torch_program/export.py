"""From an ExportedProgram to an ONNX file whose names are the program's own."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.utils import _pytree as pytree

from converter.source.save import INLINE_LIMIT
from converter.source.torch_program.reasons import failed
from converter.source_lines import STACK_TRACE, short_path

EXPORTER = "torch.onnx.export(dynamo=True)"
BASE_OPSET = 20
"""The exporter's own default."""
BF16_OPSET = 22
"""The first one at which Conv and the pooling operators may be BF16."""
_NORM_OPSETS = {"group_norm": 21, "native_group_norm": 21, "rms_norm": 23, "_fused_rms_norm": 23}
"""Norms that the exporter writes as many small operators below this opset."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' warnings and log lines: they speak to people who develop PyTorch."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "torch._export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def opset_for(program: ExportedProgram, to: str) -> int:
    """The smallest opset that keeps the program's norms whole and has what the target format needs."""
    names = {node.target._schema.name.removeprefix("aten::") for node in program.graph.nodes
             if node.op == "call_function" and hasattr(node.target, "_schema")}  # fmt: skip
    wanted = [opset for norm, opset in _NORM_OPSETS.items() if norm in names]
    return max([BASE_OPSET, *wanted, *([BF16_OPSET] if to == "bf16" else [])])


def to_onnx(
    program: ExportedProgram, opset: int, inputs: Sequence[str], outputs: Sequence[str], path: Path
) -> ExportedProgram:
    """Write a program as ONNX; returns it as the exporter decomposed it, whose node names the ONNX metadata keep.

    ``inputs`` and ``outputs`` name what the graph takes and makes; constants among the results are left out.

    Raises:
        ExportFailed: the exporter cannot translate it; its reason is quoted.
    """
    with _tensors_only(program):
        made = _translate(program, opset)
    model = made.model
    _name_values(model, list(model.graph.inputs), inputs)
    _separate_outputs(model.graph)
    _name_values(model, list(model.graph.outputs), outputs)
    for value in _all_values(model):
        if value.shape is not None:
            value.shape = ir.Shape([_size(d) for d in value.shape])
    for node in model.graph.all_nodes():
        _shorten(node)
    for function in model.functions.values():
        for node in function.all_nodes():
            _shorten(node)
    weights = sum(int(v.const_value.nbytes) for v in model.graph.initializers.values() if v.const_value is not None)
    made.save(path, external_data=weights > INLINE_LIMIT)
    return made.exported_program


def _translate(program: ExportedProgram, opset: int) -> torch.onnx.ONNXProgram:
    def run() -> torch.onnx.ONNXProgram:
        with quiet():
            made = torch.onnx.export(program, dynamo=True, opset_version=opset, verbose=False)
        assert made is not None
        return made

    try:
        return run()
    except Exception as error:
        if "Cannot view a tensor" not in str(error.__cause__ or error):
            raise failed(error, EXPORTER) from error
        first = error
    with _contiguous_attention(program):
        try:
            return run()
        except Exception as error:
            raise failed(error, EXPORTER) from first


def _is_plain(spec: Any) -> bool:
    """Whether a structure is made of tuples, lists and dicts."""
    return spec.is_leaf() or (spec.type in (tuple, list, dict) and all(map(_is_plain, spec.children())))


@contextlib.contextmanager
def _contiguous_attention(program: ExportedProgram) -> Iterator[None]:
    """Copy what fused attention makes: written out, it has other strides than were promised to a later view."""
    copies = []
    for node in list(program.graph.nodes):
        if node.op == "call_function" and node.target is torch.ops.aten.scaled_dot_product_attention.default:
            with program.graph.inserting_after(node):
                copy = program.graph.call_function(
                    torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
                )
            copy.meta = dict(node.meta)
            node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
            copies.append((node, copy))
    program.graph_module.recompile()
    try:
        yield
    finally:
        for node, copy in copies:
            copy.replace_all_uses_with(node)
            program.graph.erase_node(copy)
        program.graph_module.recompile()


@contextlib.contextmanager
def _tensors_only(program: ExportedProgram) -> Iterator[None]:
    """Without the results that are plain numbers or None: the exporter stumbles over them.  The program is put back.

    A result of a library's own class becomes a tuple too, so that nobody needs the library to load the program.
    """
    specs = program.graph_signature.output_specs
    kept = [n for n, s in enumerate(specs) if not isinstance(s.arg, ConstantArgument)]
    root = program.module_call_graph[0].signature
    if (len(kept) == len(specs) and _is_plain(program.call_spec.out_spec)) or root is None:
        yield
        return
    output = program.graph.output_node()
    before = output.args, list(specs), root.outputs, root.out_spec
    values = output.args[0]
    output.args = (tuple(values[n] for n in kept),)
    specs[:] = [specs[n] for n in kept]
    root.outputs = [s.arg for s in specs if s.kind is OutputKind.USER_OUTPUT]
    root.out_spec = pytree.treespec_tuple([pytree.treespec_leaf() for _ in root.outputs])
    program.graph_module.recompile()
    try:
        yield
    finally:
        output.args, specs[:], root.outputs, root.out_spec = before
        program.graph_module.recompile()


# ------------------------------------------------------------------------------------------------- names


def _name_values(model: ir.Model, values: Sequence[ir.Value], names: Sequence[str]) -> None:
    """Give values their names; another value that has such a name already makes way."""
    assert len(values) == len(names), f"the exporter made {len(values)} values for {len(names)} names"
    wanted = dict(zip(names, values, strict=True))
    taken = {v.name for v in _all_values(model)}
    for value in list(_all_values(model)):
        if value.name in wanted and wanted[value.name] is not value:
            fresh = next(n for k in range(1, len(taken) + 2) if (n := f"{value.name}_{k}") not in taken | set(names))
            taken.add(fresh)
            value.name = fresh
    for name, value in wanted.items():
        value.name = name


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph.all_nodes():
        yield from node.outputs


def _separate_outputs(graph: ir.Graph) -> None:
    """Give every output a value of its own: no input, no weight, and no value twice."""
    seen: set[ir.Value] = set()
    for position, value in enumerate(list(graph.outputs)):
        if value in seen or value.producer() is None:
            node = ir.node("Identity", [value])
            graph.append(node)
            copy = node.outputs[0]
            copy.type, copy.shape = value.type, value.shape
            copy.name = f"{value.name}_result_{position}"
            graph.outputs[position] = copy
        seen.add(graph.outputs[position])


def _size(size: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """An axis that the export marked open and then fixed is a number."""
    text = str(size)
    return int(text) if text.isdecimal() else size


def _shorten(node: ir.Node) -> None:
    """Keep a stack trace's files and lines, without their folders and their text."""
    trace = node.metadata_props.get(STACK_TRACE)
    if trace:
        lines = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
        node.metadata_props[STACK_TRACE] = "\n".join(map(_short_line, lines))


def _short_line(line: str) -> str:
    path, quote, rest = line.removeprefix('File "').partition('"')
    return f'File "{short_path(path)}{quote}{rest}'
