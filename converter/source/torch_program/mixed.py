"""A mixed ExportedProgram: the traced program with casts where the plan of the ONNX model has them.

ONNX nodes remember the operator they came from, so a plan speaks about operators of the exported graph too.  An
operator that became several ONNX nodes of different formats stays FP32; one that became none takes the format of what
it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.utils import _pytree as pytree

from converter.source.torch_program.arguments import Bound
from converter.source.torch_program.arrays import save_arrays
from converter.source.torch_program.export import quiet
from converter.source.torch_program.exported import Slot, bind_program, slots_of
from converter.source.torch_program.reasons import ExportFailed, reason
from converter.source_lines import innermost_line

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_WIDE_WEIGHTS = frozenset(("batch_norm", "_native_batch_norm_legit_no_training"))
"""Operators whose CPU kernel takes 16-bit input with FP32 parameters, and no mixture among the parameters."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A plan in the words of the exported graph.

    ``nodes`` maps operators to ``narrow``, ``wide`` or ``partly``; ``clamps`` maps an operator's result or an input to
    its bound; ``limits`` maps weights to the magnitude their narrow copies are limited to.
    """

    to: str
    nodes: Mapping[str, str]
    clamps: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    narrow_inputs: frozenset[str] = frozenset()
    narrow_outputs: frozenset[int] = frozenset()


@dataclass
class Counts:
    """How operators on floats matched the plan."""

    nodes: int = 0
    narrow: int = 0
    partly: list[str] = field(default_factory=list)
    unmatched: list[str] = field(default_factory=list)


class _Mixer:
    """Rewrites one graph; ``stored`` says for every FP32 value whether it is kept narrow."""

    def __init__(self, module: torch.fx.GraphModule, recipe: Recipe, names: Mapping[str, str]) -> None:
        """``names`` maps the graph's placeholders to the inputs of the ONNX graph, which the recipe speaks of."""
        self.module, self.graph, self.recipe, self.names = module, module.graph, recipe, names
        self.narrow = DTYPES[recipe.to]
        self.stored: dict[torch.fx.Node, bool] = {}
        self.counts = Counts()
        self._casts: dict[tuple[torch.fx.Node, bool], torch.fx.Node] = {}

    def rewrite(self) -> None:
        for node in list(self.graph.nodes):
            if node.op == "placeholder" and _is_float(node.meta.get("val")):
                self.stored[node] = self.names.get(node.name, node.name) in self.recipe.narrow_inputs
            elif node.op == "get_attr" and _is_float(_attribute(self.module, node.target)):
                self.stored[node] = False
            elif node.op == "call_function":
                self._operator(node)
            elif node.op == "output":
                self._results(node)
        self.graph.eliminate_dead_code()
        self._drop_unused_weights()
        self.graph.lint()
        self.module.recompile()

    def _operator(self, node: torch.fx.Node) -> None:
        makes_floats = _is_float(node.meta.get("val"))
        read = [source for source in node.all_input_nodes if source in self.stored]
        if not makes_floats and (not read or node.name not in self.recipe.nodes):
            return
        if node.target.__name__ == "getitem":
            self.stored[node] = self.stored[read[0]]
            return
        is_narrow = self._decide(node, read, makes_floats)
        self._cast_inputs(node, read, is_narrow)
        if is_narrow:
            swap = {torch.float32: self.narrow}
            node.args, node.kwargs = pytree.tree_map(lambda v: swap.get(v, v) if isinstance(v, torch.dtype) else v,
                                                     (node.args, node.kwargs))  # fmt: skip
        if makes_floats:
            self.stored[node] = is_narrow
            if is_narrow and node.name in self.recipe.clamps:
                self._clamp(node, node.name)

    def _decide(self, node: torch.fx.Node, read: Sequence[torch.fx.Node], makes_floats: bool) -> bool:
        """Whether an operator works narrow; those that make floats are counted."""
        said = self.recipe.nodes.get(node.name, "")
        if said == "narrow" and isinstance(node.target, torch._ops.HigherOrderOperator):
            said = "partly"  # its bodies are left as they are
        if makes_floats:
            self.counts.nodes += 1
            self.counts.narrow += said == "narrow"
            if said == "partly":
                self.counts.partly.append(_title(node))
            if not said:
                self.counts.unmatched.append(_title(node))
        if not said:
            return bool(read) and all(self.stored[source] for source in read)
        return said == "narrow"

    def _cast_inputs(self, node: torch.fx.Node, read: Sequence[torch.fx.Node], is_narrow: bool) -> None:
        keep = is_narrow and str(getattr(node.target, "_opname", "")) in _WIDE_WEIGHTS
        for source in read:
            wanted = is_narrow and not (keep and source.op == "get_attr")
            if self.stored[source] != wanted:
                node.replace_input_with(source, self._as(source, wanted))

    def _as(self, source: torch.fx.Node, narrow: bool) -> torch.fx.Node:
        """A value in the other format: a weight's own copy, or a cast shared by all readers."""
        if (source, narrow) not in self._casts:
            if source.op == "get_attr":
                made = self._narrow_weight(source)
            else:
                with self.graph.inserting_after(source):
                    made = self._cast(source, narrow)
            self.stored[made] = narrow
            self._casts[source, narrow] = made
        return self._casts[source, narrow]

    def _cast(self, source: torch.fx.Node, narrow: bool) -> torch.fx.Node:
        bound = self.recipe.clamps.get(self.names.get(source.name, source.name)) if narrow else None
        made = self.graph.call_function(torch.ops.aten.to.dtype, (source, self.narrow if narrow else torch.float32))
        if bound is not None:
            with self.graph.inserting_before(made):
                limited = self.graph.call_function(torch.ops.aten.clamp.default, (source, -bound, bound))
            made.replace_input_with(source, limited)
        return made

    def _narrow_weight(self, source: torch.fx.Node) -> torch.fx.Node:
        weight = _attribute(self.module, source.target).detach()
        limit = self.recipe.limits.get(str(source.target))
        name = f"{str(source.target).replace('.', '_')}_{self.recipe.to}"
        self.module.register_buffer(name, (weight if limit is None else weight.clamp(-limit, limit)).to(self.narrow))
        with self.graph.inserting_after(source):
            return self.graph.get_attr(name)

    def _clamp(self, node: torch.fx.Node, name: str) -> None:
        bound = self.recipe.clamps[name]
        with self.graph.inserting_after(node):
            made = self.graph.call_function(torch.ops.aten.clamp.default, (node, -bound, bound))
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        self.stored[made] = True

    def _results(self, node: torch.fx.Node) -> None:
        for position, source in enumerate(pytree.tree_leaves(node.args)):
            if isinstance(source, torch.fx.Node) and source in self.stored:
                wanted = position in self.recipe.narrow_outputs
                if self.stored[source] != wanted:
                    node.replace_input_with(source, self._as(source, wanted))

    def _drop_unused_weights(self) -> None:
        used = {str(node.target) for node in self.graph.nodes if node.op == "get_attr"}
        for name, _ in [*self.module.named_parameters(), *self.module.named_buffers()]:
            if name not in used:
                path, _, last = name.rpartition(".")
                delattr(self.module.get_submodule(path), last)


def _is_float(value: Any) -> bool:
    """Whether a value is FP32, or several of which one is."""
    if isinstance(value, list | tuple):
        return any(map(_is_float, value))
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _attribute(module: torch.nn.Module, name: Any) -> Any:
    for part in str(name).split("."):
        module = getattr(module, part)
    return module


def _title(node: torch.fx.Node) -> str:
    line = innermost_line(node.meta.get("stack_trace") or "")
    return f"{node.name} ({line})" if line else node.name


# ------------------------------------------------------------------------------------------------- the whole


def hand_back(folder: Path, source: str, recipe: Recipe, feeds: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """Make, run and save the mixed program; returns counts, and the results are written beside it as ``.npz``.

    ``feeds`` are the first batch in the order of the ONNX graph's inputs, which is the order of the program's tensors.

    Raises:
        ExportFailed: it cannot be made or does not run; the reason is quoted.
    """
    program = torch.export.load(str(folder / source))
    slots = slots_of(program)
    tensors = [slot for slot in slots if slot.dtype is not None]
    sample = {slot.name: value for slot, value in zip(tensors, feeds.values(), strict=True)}
    bound = bind_program(program, slots, sample, "of the trace")
    names = {slot.placeholder: name for slot, name in zip(tensors, feeds, strict=True)}
    with quiet(), torch.no_grad():
        mixed, counts = mix(program, recipe, bound, slots, names)
        given = _narrowed(bound.copied(), slots, recipe, names)
        try:
            results = pytree.tree_leaves(mixed.module()(*given.args, **given.kwargs))
        except Exception as error:
            raise ExportFailed(f"PyTorch cannot run it on the CPU: {reason(error)}") from error
        torch.export.save(mixed, str(target))
    save_arrays(target.with_suffix(".npz"), {str(number): value for number, value in enumerate(results)})
    return {"nodes": counts.nodes, "narrow": counts.narrow, "partly": counts.partly, "unmatched": counts.unmatched}


def mix(
    program: ExportedProgram, recipe: Recipe, bound: Bound, slots: Sequence[Slot], names: Mapping[str, str]
) -> tuple[ExportedProgram, Counts]:
    """The program with the recipe's casts, exported again so that every value has its type."""
    module = program.module(check_guards=False)
    mixer = _Mixer(module, recipe, names)
    mixer.rewrite()
    given = _narrowed(bound.copied(), slots, recipe, names)
    sizes = iter([{a: Dim.AUTO for a, d in enumerate(slot.shape) if not isinstance(d, int)} or None for slot in slots])
    args, kwargs = pytree.tree_map(lambda _: next(sizes), (given.args, given.kwargs))
    shapes = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
    try:
        with torch.fx.experimental._config.patch(backed_size_oblivious=True):
            mixed = torch.export.export(module, given.args, given.kwargs, dynamic_shapes=shapes)
    except Exception as error:
        raise ExportFailed(f"PyTorch cannot export it: {reason(error)}") from error
    return mixed, mixer.counts


def _narrowed(bound: Bound, slots: Sequence[Slot], recipe: Recipe, names: Mapping[str, str]) -> Bound:
    """Arguments whose inputs are narrow in the converted model, cast."""
    narrow = iter([names.get(slot.placeholder) in recipe.narrow_inputs for slot in slots])
    kind = DTYPES[recipe.to]
    return Bound(*pytree.tree_map(lambda v: v.to(kind) if next(narrow) else v, (bound.args, bound.kwargs)))
