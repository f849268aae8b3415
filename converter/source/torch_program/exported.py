"""What an ExportedProgram takes: its arguments leaf by leaf, and a batch bound to them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree

from converter.errors import BatchError
from converter.source.torch_program.arguments import Bound, Sample, as_value, leaves_of
from converter.source.torch_program.reasons import ExportFailed

_SCALARS = {bool: "bool", int: "int", float: "float"}


@dataclass(frozen=True, slots=True)
class Slot:
    """One leaf of a program's arguments.

    ``shape`` has numbers where the program fixed an axis and names where it left one open; ``dtype`` is None for a
    number or another constant, whose value then is ``constant``.
    """

    name: str
    path: str
    placeholder: str
    dtype: torch.dtype | None
    shape: tuple[int | str, ...] = ()
    constant: Any = None

    @property
    def type(self) -> str:
        """The element type as reports write it."""
        if self.dtype is None:
            return type(self.constant).__name__
        return str(self.dtype).removeprefix("torch.")


def slots_of(program: ExportedProgram) -> list[Slot]:
    """Every leaf of the arguments in the order of the graph's inputs."""
    spec = program.call_spec.in_spec
    assert spec is not None
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    names = list(inspect.signature(program.module(check_guards=False).forward).parameters)
    found = []
    user = [s.arg for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT]
    for leaf, argument in zip(leaves_of(args, kwargs, names), user, strict=True):
        value = values.get(argument.name)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise ExportFailed(
                f"argument '{leaf.name}' of the program is a number that may change between calls ({value}); ONNX "
                "takes tensors: export the program with a tensor there, or with the number fixed"
            )
        if isinstance(argument, ConstantArgument) or not isinstance(value, torch.Tensor):
            constant = getattr(argument, "value", value)
            found.append(Slot(leaf.name, leaf.path, argument.name, None, constant=constant))
        else:
            found.append(Slot(leaf.name, leaf.path, argument.name, value.dtype, _shape(value)))
    return found


def _shape(value: torch.Tensor) -> tuple[int | str, ...]:
    """Sizes; an axis that the export marked open and then fixed is a number."""
    return tuple(int(text) if (text := str(d)).isdecimal() else text for d in value.shape)


def kept_outputs(program: ExportedProgram) -> list[bool]:
    """For every leaf of the result whether it depends on the run: constants get no output in an ONNX graph."""
    specs = [s for s in program.graph_signature.output_specs if s.kind is OutputKind.USER_OUTPUT]
    return [not isinstance(s.arg, ConstantArgument) for s in specs]


def bind_program(program: ExportedProgram, slots: Sequence[Slot], sample: Sample, batch: str) -> Bound:
    """The arguments for one batch; a constant of the program may be left out.

    Raises:
        BatchError: an argument is missing, unknown, or has another type, rank or size than the program takes.
    """
    given = _by_slot(slots, sample, batch)
    for slot in slots:
        if slot.dtype is not None and slot.name not in given:
            raise BatchError(
                f"batch '{batch}' lacks argument '{slot.name}' of the program; add it under that key. The program "
                f"takes {_listed(slots)}; the batch has {', '.join(repr(k) for k in sample) or 'nothing'}"
            )
    values = [_value(slot, given, batch) for slot in slots]
    spec = program.call_spec.in_spec
    assert spec is not None
    args, kwargs = pytree.tree_unflatten(values, spec)
    return Bound(args, kwargs)


def _by_slot(slots: Sequence[Slot], sample: Sample, batch: str) -> dict[str, Any]:
    """The batch by the slots' names; keys may also be placeholders or positions."""
    aliases = {alias: slot.name for slot in slots for alias in (slot.placeholder, slot.name)}
    heads = list(dict.fromkeys(slot.name.partition(".")[0] for slot in slots))
    for position, head in enumerate(heads):
        for slot in slots:
            first, dot, rest = slot.name.partition(".")
            if first == head:
                aliases |= {f"{prefix}{position}{dot}{rest}": slot.name for prefix in ("", "arr_")}
    found: dict[str, Any] = {}
    for key, value in sample.items():
        if key not in aliases:
            raise BatchError(
                f"batch '{batch}' has key '{key}', which is no argument of the program; it takes {_listed(slots)}"
            )
        found[aliases[key]] = value
    return found


def _value(slot: Slot, given: Mapping[str, Any], batch: str) -> Any:
    if slot.dtype is None:
        return _constant(slot, given, batch)
    value = as_value(given[slot.name], slot.name, batch, doubles=slot.dtype is torch.float64)
    if value.dtype != slot.dtype:
        got = str(value.dtype).removeprefix("torch.")
        raise BatchError(
            f"argument '{slot.name}' of batch '{batch}' has element type {got}, the program takes {slot.type}; convert "
            f"it with .astype('{slot.type}')"
        )
    _check_shape(slot, value, batch)
    return value


def _constant(slot: Slot, given: Mapping[str, Any], batch: str) -> Any:
    """A fixed number: a batch may repeat it, and may not change it."""
    if slot.name in given and type(slot.constant) in _SCALARS:
        value = as_value(given[slot.name], slot.name, batch, _SCALARS[type(slot.constant)])
        if value != slot.constant:
            raise BatchError(
                f"argument '{slot.name}' of batch '{batch}' is {value}, but the program was exported with "
                f"{slot.constant} fixed there; leave it out or export the program again"
            )
    return slot.constant


def _check_shape(slot: Slot, value: torch.Tensor, batch: str) -> None:
    have, want = list(value.shape), ", ".join(map(str, slot.shape))
    if len(have) != len(slot.shape):
        raise BatchError(
            f"argument '{slot.name}' of batch '{batch}' has rank {len(have)} (shape {have}), the program takes rank "
            f"{len(slot.shape)} [{want}]; reshape it"
        )
    for axis, (size, fixed) in enumerate(zip(have, slot.shape, strict=True)):
        if isinstance(fixed, int) and size != fixed:
            raise BatchError(
                f"argument '{slot.name}' of batch '{batch}' has size {size} on axis {axis} (shape {have}), the program "
                f"takes {fixed} there [{want}]; cut or pad it, or export the program with that axis dynamic"
            )


def _listed(slots: Sequence[Slot]) -> str:
    return ", ".join(f"'{slot.name}'" for slot in slots) or "none"
