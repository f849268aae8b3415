"""Sequence, optional and Identity operators on Python values: they move references and never touch a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np


class _Empty:
    """An optional without an element."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = _Empty()

Arguments = Sequence[Any]


class StructureFailure(Exception):
    """A sequence index out of range, or an element taken from an empty optional."""


def run_structure(op_type: str, arguments: Arguments) -> Any:
    """The single output of a structure operator for its present inputs.

    Raises:
        StructureFailure: with the position and the length it violates.
    """
    return _OPERATORS[op_type](arguments)


def _position(index: Any, length: int, upper: int) -> int:
    position = int(np.asarray(index).reshape(()))
    if not -length <= position <= upper:
        raise StructureFailure(f"sequence position {position} is outside a sequence of {length} elements")
    return position + length if position < 0 else position


def _at(arguments: Arguments) -> Any:
    sequence, index = arguments
    return sequence[_position(index, len(sequence), len(sequence) - 1)]


def _insert(arguments: Arguments) -> list[Any]:
    sequence, element = list(arguments[0]), arguments[1]
    place = _position(arguments[2], len(sequence), len(sequence)) if len(arguments) > 2 else len(sequence)
    return [*sequence[:place], element, *sequence[place:]]


def _erase(arguments: Arguments) -> list[Any]:
    sequence = list(arguments[0])
    place = _position(arguments[1], len(sequence), len(sequence) - 1) if len(arguments) > 1 else len(sequence) - 1
    if not sequence:
        raise StructureFailure("an element is erased from an empty sequence")
    del sequence[place]
    return sequence


def _element(arguments: Arguments) -> Any:
    if arguments[0] is EMPTY:
        raise StructureFailure("the element of an empty optional is taken")
    return arguments[0]


_OPERATORS: dict[str, Callable[[Arguments], Any]] = {
    "Identity": lambda arguments: arguments[0],
    "SequenceEmpty": lambda _: [],
    "SequenceConstruct": list,
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": lambda arguments: np.array(len(arguments[0]), np.int64),
    "Optional": lambda arguments: arguments[0] if arguments else EMPTY,
    "OptionalGetElement": _element,
    "OptionalHasElement": lambda arguments: np.array(bool(arguments) and arguments[0] is not EMPTY),
}
