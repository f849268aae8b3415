"""From the keys of a batch to a program's arguments, and from its results to names.

A key is the name of an argument, or its position (``0``, or ``arr_0`` as ``numpy.savez`` writes it); a part of a
nested argument follows behind dots: ``state.0``, ``cache.key.1``.  The ONNX graph gets the same names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from converter.errors import BatchError

Sample = Mapping[str, Any]
"""Arrays, tensors or numbers by dotted key."""

TENSOR_TYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.int8,
                          torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32,
                          torch.uint64))  # fmt: skip
"""What arguments and results of a program may hold."""
_POSITION = re.compile(r"(?:arr_|arg_?|input_?)?(\d+)")
_SCALARS: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of ``forward``; ``scalar`` is ``int``, ``float`` or ``bool`` where it takes such a number."""

    name: str
    required: bool
    scalar: str = ""
    takes_list: bool = False
    keyword_only: bool = False


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor or number somewhere in the arguments or results, with its dotted name and its way in Python."""

    name: str
    path: str
    value: Any


# ------------------------------------------------------------------------------------------------- parameters


def parameters_of(module: torch.nn.Module) -> tuple[Parameter, ...] | None:
    """The parameters of a module's ``forward``; None when it takes any number of them by position."""
    if isinstance(module, torch.jit.ScriptModule):
        return tuple(_scripted(argument) for argument in module.forward.schema.arguments[1:])
    given = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in given):
        return None
    return tuple(_plain(p) for p in given if p.kind is not p.VAR_KEYWORD)


def _plain(parameter: inspect.Parameter) -> Parameter:
    annotation = parameter.annotation if isinstance(parameter.annotation, str) else ""
    for name, kind in (("int", int), ("float", float), ("bool", bool)):
        if parameter.annotation is kind:
            annotation = name
    return Parameter(
        parameter.name,
        required=parameter.default is parameter.empty,
        scalar=annotation if annotation in _SCALARS else "",
        keyword_only=parameter.kind is parameter.KEYWORD_ONLY,
    )


def _scripted(argument: Any) -> Parameter:
    kind = str(argument.type).removeprefix("Optional[").removesuffix("]")
    return Parameter(
        argument.name,
        required=not argument.has_default_value(),
        scalar=kind if kind in _SCALARS else "",
        takes_list=kind.startswith("List["),
    )


# ------------------------------------------------------------------------------------------------- binding


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments ready for a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copied(self) -> Bound:
        """The same with tensors of their own: a program may write into its arguments."""
        fresh = pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (self.args, self.kwargs))
        return Bound(*fresh)


def bind(sample: Sample, parameters: tuple[Parameter, ...] | None, batch: str) -> Bound:
    """Arguments of a module for one batch.

    Raises:
        BatchError: an argument is missing or unknown, or an array is none that a tensor can hold.
    """
    names = None if parameters is None else [p.name for p in parameters]
    tree = _tree(sample, names, batch)
    if parameters is None:
        return Bound(tuple(_nested(tree[k], k, batch) for k in sorted(tree, key=int)), {})
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for position, parameter in enumerate(parameters):
        if parameter.name not in tree:
            if parameter.required:
                raise BatchError(
                    f"batch '{batch}' lacks argument '{parameter.name}' of the program; add it under that key. "
                    f"The program takes {_listed(names)}; the batch has {_listed(sample)}"
                )
            continue
        value = _nested(tree[parameter.name], parameter.name, batch, parameter)
        if len(args) == position and not parameter.keyword_only:
            args.append(value)
        else:
            kwargs[parameter.name] = value
    return Bound(tuple(args), kwargs)


def _tree(sample: Sample, names: Sequence[str] | None, batch: str) -> dict[str, Any]:
    """Nested dicts by argument."""
    tree: dict[str, Any] = {}
    for key, value in sample.items():
        first, *rest = key.split(".")
        place = tree
        for part, following in zip([_argument(first, names, batch), *rest], [*rest, None], strict=True):
            if following is None:
                place[part] = value
            else:
                place = place.setdefault(part, {})
                if not isinstance(place, dict):
                    raise BatchError(f"batch '{batch}' has key '{key}' beside a key '{part}' that it would be part of")
    return tree


def _argument(key: str, names: Sequence[str] | None, batch: str) -> str:
    position = _POSITION.fullmatch(key)
    if names is None and position:
        return position[1]
    if names is not None and key in names:
        return key
    if names is not None and position and int(position[1]) < len(names):
        return names[int(position[1])]
    raise BatchError(
        f"batch '{batch}' has key '{key}', which is no argument of the program; it takes "
        f"{'any number of arguments by position (0, 1, ...)' if names is None else _listed(names)}"
    )


def _nested(given: Any, name: str, batch: str, parameter: Parameter | None = None) -> Any:
    if not isinstance(given, dict):
        return as_value(given, name, batch, parameter.scalar if parameter else "")
    parts = {key: _nested(value, f"{name}.{key}", batch) for key, value in given.items()}
    if not all(key.isdecimal() for key in parts):
        return parts
    order = sorted(parts, key=int)
    if order != [str(k) for k in range(len(order))]:
        raise BatchError(f"batch '{batch}' has parts {_listed(order)} of argument '{name}'; they must count from 0")
    return [parts[k] for k in order] if parameter and parameter.takes_list else tuple(parts[k] for k in order)


def as_value(given: Any, name: str, batch: str, scalar: str = "", doubles: bool = False) -> Any:
    """A tensor, or a Python number where the program takes one; ``doubles`` lets arrays of ``float64`` pass."""
    if scalar and np.ndim(given) == 0:
        return _SCALARS[scalar](np.asarray(given).item())
    if isinstance(given, torch.Tensor):
        return _plain_tensor(given, name, batch)
    array = np.asarray(given)
    if array.dtype.kind not in "fiub":
        raise BatchError(
            f"argument '{name}' of batch '{batch}' has element type {array.dtype}; a program takes floats, integers "
            "and booleans"
        )
    if array.dtype == np.float64 and not doubles:
        raise BatchError(
            f"argument '{name}' of batch '{batch}' has element type float64; convert it with .astype('float32')"
        )
    return torch.from_numpy(np.array(array, order="C"))


def _plain_tensor(given: torch.Tensor, name: str, batch: str) -> torch.Tensor:
    if given.dtype not in TENSOR_TYPES or given.layout != torch.strided:
        kind = str(given.dtype if given.layout == torch.strided else given.layout).removeprefix("torch.")
        raise BatchError(
            f"argument '{name}' of batch '{batch}' is a tensor of {kind}; a program takes dense floats, integers and "
            "booleans"
        )
    return given.detach()


def leaves_of(args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Sequence[str] | None) -> list[Leaf]:
    """Every tensor and number of a call, in the order in which torch flattens it."""
    found = []
    for path, value in pytree.tree_flatten_with_path((args, dict(kwargs)))[0]:
        side, head, *rest = (_key(entry) for entry in path)
        name = str(head) if side or names is None else names[int(head)]
        found.append(Leaf(".".join([name, *map(str, rest)]), name + "".join(f"[{part!r}]" for part in rest), value))
    return found


def results_of(result: Any, taken: Iterable[str] = ()) -> list[Leaf]:
    """Every leaf of a result; a name that an input has already gets ``output.`` in front, a second one its number."""
    inputs = set(taken)
    found: list[Leaf] = []
    used: set[str] = set()
    for path, value in pytree.tree_flatten_with_path(result)[0]:
        keys = [_key(entry) for entry in path]
        name = ".".join(map(str, keys))
        if not keys or isinstance(keys[0], int) or name in inputs or not name.strip("."):
            name = ".".join(["output", *map(str, keys)])
        if name in used:  # keys may have dots of their own
            name = next(n for k in range(2, len(found) + 3) if (n := f"{name}_{k}") not in used)
        used.add(name)
        found.append(Leaf(name, "result" + "".join(f"[{key!r}]" for key in keys), value))
    return found


def _key(entry: Any) -> Any:
    """The index, key or attribute of one step of a path."""
    return next(getattr(entry, field) for field in ("idx", "key", "name") if hasattr(entry, field))


def _listed(names: Iterable[str] | None) -> str:
    return ", ".join(f"'{name}'" for name in names or ()) or "none"
