"""Sequences and optionals as Python values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.runtime.structures import EMPTY, StructureFailure, run_structure

A, B, C = (np.array([k], np.float32) for k in range(3))


def at(position: int) -> np.ndarray[Any, np.dtype[Any]]:
    return np.array(position, np.int64)


@pytest.mark.parametrize(
    ("op_type", "arguments", "expected"),
    [
        ("SequenceEmpty", [], []),
        ("SequenceConstruct", [A, B], [A, B]),
        ("SequenceAt", [[A, B], at(1)], B),
        ("SequenceAt", [[A, B], at(-2)], A),
        ("SequenceInsert", [[A, B], C], [A, B, C]),
        ("SequenceInsert", [[A, B], C, at(0)], [C, A, B]),
        ("SequenceInsert", [[A, B], C, at(2)], [A, B, C]),
        ("SequenceInsert", [[A, B], C, at(-1)], [A, C, B]),
        ("SequenceErase", [[A, B]], [A]),
        ("SequenceErase", [[A, B], at(0)], [B]),
        ("SequenceErase", [[A, B], at(-2)], [B]),
        ("Identity", [A], A),
        ("Optional", [A], A),
        ("Optional", [], EMPTY),
        ("OptionalGetElement", [A], A),
    ],
)
def test_moves_references(op_type: str, arguments: list[Any], expected: Any) -> None:
    found = run_structure(op_type, arguments)
    if isinstance(expected, list):
        assert [id(x) for x in found] == [id(x) for x in expected]
    else:
        assert found is expected


@pytest.mark.parametrize(
    ("op_type", "arguments", "expected"),
    [("SequenceLength", [[A, B]], 2), ("OptionalHasElement", [A], True), ("OptionalHasElement", [EMPTY], False),
     ("OptionalHasElement", [], False)],
)  # fmt: skip
def test_reads(op_type: str, arguments: list[Any], expected: Any) -> None:
    assert run_structure(op_type, arguments) == expected


@pytest.mark.parametrize(
    ("op_type", "arguments", "message"),
    [
        ("SequenceAt", [[A], at(1)], "sequence position 1 is outside a sequence of 1 elements"),
        ("SequenceAt", [[A], at(-2)], "sequence position -2 is outside a sequence of 1 elements"),
        ("SequenceInsert", [[A], B, at(2)], "sequence position 2 is outside a sequence of 1 elements"),
        ("SequenceErase", [[A], at(1)], "sequence position 1 is outside a sequence of 1 elements"),
        ("SequenceErase", [[]], "an element is erased from an empty sequence"),
        ("OptionalGetElement", [EMPTY], "the element of an empty optional is taken"),
    ],
)
def test_refusals(op_type: str, arguments: list[Any], message: str) -> None:
    with pytest.raises(StructureFailure) as refused:
        run_structure(op_type, arguments)
    assert str(refused.value) == message


def test_arguments_are_left_alone() -> None:
    sequence = [A, B]
    run_structure("SequenceInsert", [sequence, C])
    run_structure("SequenceErase", [sequence])
    assert sequence == [A, B]


def test_the_empty_optional_can_be_read_in_a_message() -> None:
    assert repr(EMPTY) == "EMPTY"
