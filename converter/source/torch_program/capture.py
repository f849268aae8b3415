"""From a module to an ExportedProgram, and what an exported graph must not hold."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from converter.source.torch_program.arguments import Bound, leaves_of
from converter.source.torch_program.export import quiet
from converter.source.torch_program.reasons import ExportFailed, failed, reason
from converter.source_lines import innermost_line

Axes = Mapping[str, Mapping[int, bool]]
"""Open axes by leaf name; the flag says that the caller asked for this one by name."""

_RANDOM = ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "bernoulli",
           "multinomial", "normal", "poisson", "rrelu", "exponential", "uniform")  # fmt: skip
_DROPOUT = ("dropout", "native_dropout", "alpha_dropout", "feature_dropout")


def capture(
    module: torch.nn.Module, bound: Bound, names: Sequence[str] | None, axes: Axes
) -> tuple[ExportedProgram, str]:
    """Export a module; the second result says why axes that nobody asked for had to be closed, or is empty.

    Raises:
        ExportFailed: PyTorch cannot export it; its reason is quoted.
    """
    try:
        return _export(module, bound, names, axes), ""
    except Exception as error:
        asked = any(flag for sizes in axes.values() for flag in sizes.values())
        if asked or not axes:
            raise failed(error, "torch.export") from error
        first = error
    try:
        return _export(module, bound, names, {}), reason(first)
    except Exception as error:
        raise failed(error, "torch.export") from first


def _export(module: torch.nn.Module, bound: Bound, names: Sequence[str] | None, axes: Axes) -> ExportedProgram:
    # Backed sizes must not be specialised because the sample happens to have one row.
    with quiet(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
        return torch.export.export(
            module, bound.args, bound.kwargs, dynamic_shapes=_shapes(module, bound, names, axes), strict=False
        )


def _shapes(module: torch.nn.Module, bound: Bound, names: Sequence[str] | None, axes: Axes) -> Any:
    """The open axes in the shape torch.export wants them: like the arguments, by the parameters of ``forward``."""
    if not axes:
        return None
    wanted = iter(
        {axis: Dim.DYNAMIC if asked else Dim.AUTO for axis, asked in axes.get(leaf.name, {}).items()} or None
        for leaf in leaves_of(bound.args, bound.kwargs, names)
    )
    args, kwargs = pytree.tree_map(lambda _: next(wanted), (bound.args, bound.kwargs))
    return inspect.signature(module.forward).bind(*args, **kwargs).arguments


def check_deterministic(program: ExportedProgram) -> None:
    """Refuse graphs that draw random numbers or normalise by the batch.

    Raises:
        ExportFailed: naming the operator, its module and its line.
    """
    for graph in (part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)):
        for node in graph.nodes:
            if node.op == "call_function" and hasattr(node.target, "_schema"):
                _check_node(node)


def _check_node(node: torch.fx.Node) -> None:
    name = node.target._schema.name.removeprefix("aten::").rstrip("_")
    given = _given(node)
    if name in _DROPOUT and given.get("train") and given.get("p", 1.0):
        raise ExportFailed(
            f"dropout is left on ({_where(node)}): the program draws random numbers on every call; call model.eval() "
            "before torch.export.export or torch.jit.save, and pass training=self.training to functional dropout"
        )
    if name in ("batch_norm", "_native_batch_norm_legit") and given.get("training"):
        raise ExportFailed(
            f"batch normalisation is in training mode ({_where(node)}): it uses the batch's own statistics; call "
            "model.eval() before torch.export.export"
        )
    if name in _RANDOM:
        raise ExportFailed(
            f"the program draws random numbers (aten.{name}, {_where(node)}), so its results cannot be compared; take "
            "them as an argument of the program"
        )


def _given(node: torch.fx.Node) -> dict[str, Any]:
    names = [a.name for a in node.target._schema.arguments]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _where(node: torch.fx.Node) -> str:
    module, line = module_of(node), innermost_line(node.meta.get("stack_trace") or "")
    return ", ".join(part for part in (f"module '{module}'" if module else "", line) if part) or node.name


def module_of(node: torch.fx.Node) -> str:
    """The path of the module an operator belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""
