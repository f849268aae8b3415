"""TorchScript to ONNX: the legacy exporter, torch's own converter where it verifies, or a recording of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from converter.source.torch_program.arguments import Bound, Leaf, leaves_of, results_of
from converter.source.torch_program.arrays import as_array
from converter.source.torch_program.capture import Axes
from converter.source.torch_program.export import BASE_OPSET, quiet
from converter.source.torch_program.reasons import ExportFailed, advice_for, reason
from converter.source.torch_program.record import record

LEGACY = "torch.onnx.export(dynamo=False)"
CONVERTER = "torch's TorchScript-to-ExportedProgram converter"
RECORDING = "a recording of the operators of one run"
AGREES = 1e-5
"""Relative L2 difference up to which a converted program counts as the same."""


@dataclass
class Scripted:
    """What became of a ScriptModule: an ONNX file already (``written``), or an ExportedProgram.

    ``axes`` are those that stayed open; ``outputs`` names the results of the written file.
    """

    exporter: str
    exported: ExportedProgram | None = None
    axes: Axes = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)


Attempt = Callable[[], Scripted]


def export_script(
    fresh: Callable[[], Any], bound: Bound, names: Sequence[str], axes: Axes, path: Path, exported_only: bool
) -> Scripted:
    """Find the way that works; ``exported_only`` leaves the legacy exporter out, which makes no program.

    ``fresh`` gives the module as it was saved: running it may change it.

    Raises:
        ExportFailed: no way works; every reason is quoted.
    """
    attempts: dict[str, Attempt] = {
        LEGACY: lambda: _legacy(fresh(), bound, names, axes, path),
        CONVERTER: lambda: _converted(fresh, bound),
        RECORDING: lambda: _recorded(fresh(), bound),
    }
    if exported_only:
        del attempts[LEGACY]
    problems: list[str] = []
    for name, attempt in attempts.items():
        try:
            with quiet(), torch.no_grad():
                found = attempt()
        except Exception as error:
            problems.append(f"{name}: {reason(error)}")
            continue
        if problems:
            found.notes.append(("exporter", "; ".join(f"not used: {problem}" for problem in problems)))
        return found
    way_out = "export the original module with torch.export.save(torch.export.export(model.eval(), args), 'model.pt2')"
    quantised = advice_for("quantized op") if any("quantized" in problem for problem in problems) else ""
    raise ExportFailed(
        f"TorchScript cannot be turned into ONNX in any of {len(problems)} ways. {'. '.join(problems)}. What helps: "
        f"{quantised or way_out}"
    )


def _legacy(module: torch.jit.ScriptModule, bound: Bound, names: Sequence[str], axes: Axes, path: Path) -> Scripted:
    leaves = leaves_of(bound.args, bound.kwargs, names)
    odd = [leaf.name for leaf in leaves if not isinstance(leaf.value, torch.Tensor)]
    if odd or bound.kwargs:
        raise ExportFailed(f"it takes tensors only, and argument '{(odd or list(bound.kwargs))[0]}' is none")
    results = results_of(_call(module, bound), [leaf.name for leaf in leaves])
    kept, note = _open_axes(module, bound, names, axes)
    inputs = [leaf.name for leaf in leaves]
    torch.onnx.export(
        module, bound.copied().args, path, dynamo=False, opset_version=BASE_OPSET, input_names=inputs,
        output_names=[leaf.name for leaf in results],
        dynamic_axes={n: {a: f"{n}_{a}" for a in sizes} for n, sizes in kept.items()},
    )  # fmt: skip
    _settle(path, leaves, results, kept)
    return Scripted(LEGACY, axes=kept, notes=note)


def _settle(path: Path, leaves: Sequence[Leaf], results: Sequence[Leaf], axes: Axes) -> None:
    """Give a written graph every argument of the program, used or not, and its tensors only as results."""
    model = ir.load(path)
    graph = model.graph
    if len(graph.outputs) != len(results):
        raise ExportFailed(f"it wrote {len(graph.outputs)} outputs for {len(results)} results")
    held = {value.name: value for value in graph.inputs}
    outputs = [v for v, leaf in zip(graph.outputs, results, strict=True) if isinstance(leaf.value, torch.Tensor)]
    if list(held) == [leaf.name for leaf in leaves] and len(outputs) == len(results):
        return
    graph.inputs[:] = [held.get(leaf.name) or _input(leaf, axes) for leaf in leaves]
    graph.outputs[:] = outputs
    RemoveUnusedNodesPass()(model)
    ir.save(model, path)


def _input(leaf: Leaf, axes: Axes) -> ir.Value:
    """The input of a graph for an argument that it does not use."""
    free = axes.get(leaf.name, {})
    shape = [f"{leaf.name}_{a}" if a in free else size for a, size in enumerate(leaf.value.shape)]
    kind = ir.DataType.from_numpy(as_array(leaf.value).dtype)
    return ir.Value(name=leaf.name, shape=ir.Shape(shape), type=ir.TensorType(kind))


def _open_axes(
    module: torch.jit.ScriptModule, bound: Bound, names: Sequence[str], axes: Axes
) -> tuple[Axes, list[tuple[str, str]]]:
    """Which axes may stay open: those asked for, and the batch when twice as many rows give the same rows."""
    asked = {name: {a: f for a, f in sizes.items() if f} for name, sizes in axes.items()}
    if asked == axes:
        return axes, []
    try:
        base, twice = _call(module, bound), _call(module, _doubled(bound, names, axes))
        same = all(map(_starts_alike, pytree.tree_leaves(base), pytree.tree_leaves(twice)))
        why = "its rows depend on each other, or a size is written into the program"
    except Exception as error:
        same, why = False, reason(error)
    if same:
        return axes, []
    return {n: s for n, s in asked.items() if s}, [("axes", f"the batch axis is fixed: with twice as many rows {why}")]


def _doubled(bound: Bound, names: Sequence[str], axes: Axes) -> Bound:
    wide = iter(0 in axes.get(leaf.name, {}) for leaf in leaves_of(bound.args, bound.kwargs, names))
    args = pytree.tree_map(lambda v: torch.cat([v, v]) if next(wide) else v, bound.args)
    return Bound(args, {})


def _starts_alike(base: Any, twice: Any) -> bool:
    """Whether the first rows of a result with twice as many rows are the result."""
    if not isinstance(base, torch.Tensor) or not isinstance(twice, torch.Tensor) or base.dim() != twice.dim():
        return bool(base == twice)
    if base.dim() and twice.shape[0] == 2 * base.shape[0]:
        twice = twice[: base.shape[0]]
    return bool(base.shape == twice.shape and torch.allclose(base.float(), twice.float(), rtol=1e-3, atol=1e-5))


def _converted(fresh: Callable[[], Any], bound: Bound) -> Scripted:
    """Torch's converter, if what it makes gives what the module gives."""
    from torch._export.converter import TS2EPConverter

    given = bound.copied()
    program = TS2EPConverter(fresh(), given.args, given.kwargs).convert()
    wanted = pytree.tree_leaves(_call(fresh(), bound))
    got = pytree.tree_leaves(_call(program.module(), bound))
    for number, (a, b) in enumerate(zip(wanted, got, strict=True)):
        gap = _difference(a, b)
        if not gap <= AGREES:
            raise ExportFailed(f"result {number} differs from the program's by {gap:.2g} (relative L2)")
    return Scripted(CONVERTER, program)


def _call(module: Any, bound: Bound) -> Any:
    given = bound.copied()
    return module(*given.args, **given.kwargs)


def _recorded(module: torch.jit.ScriptModule, bound: Bound) -> Scripted:
    given = bound.copied()
    with torch.backends.mkldnn.flags(enabled=False):  # its fused operators have no ONNX form
        graph = record(lambda: module(*given.args, **given.kwargs), _tensors(given))
    program = torch.export.export(graph, tuple(_tensors(bound.copied())), strict=False)
    note = "every size and number is fixed to the first batch's: the operators of one run were recorded"
    return Scripted(RECORDING, program, notes=[("axes", note)])


def _tensors(bound: Bound) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves((bound.args, bound.kwargs)) if isinstance(v, torch.Tensor)]


def _difference(a: Any, b: Any) -> float:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return 0.0 if a == b else float("inf")
    if a.shape != b.shape:
        return float("inf")
    norm = float(a.double().norm())
    return float((a.double() - b.double()).norm()) / (norm or 1.0)
