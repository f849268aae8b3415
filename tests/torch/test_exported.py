"""What an ExportedProgram takes, leaf by leaf, and batches that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim, export

from converter.errors import BatchError
from converter.source.torch_program.exported import bind_program, kept_outputs, slots_of
from converter.source.torch_program.reasons import ExportFailed

X = np.ones((2, 3), np.float32)


class Net(torch.nn.Module):
    def forward(self, x: Any, state: Any, steps: int, *, extra: Any = None) -> Any:
        y = x * steps + state[0] + state[1]["a"]
        return (y if extra is None else y + extra), {"size": x.shape[0], "fixed": 3, "none": None}


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    x = torch.ones(2, 3)
    shapes = {"x": {0: Dim.AUTO}, "state": ({0: Dim.AUTO}, {"a": {0: Dim.AUTO}}), "steps": None, "extra": {0: Dim.AUTO}}
    return export(Net(), (x, (x + 1, {"a": x + 2}), 3), {"extra": x + 3}, dynamic_shapes=shapes, strict=False)


def test_slots_have_names_types_and_open_axes(program: torch.export.ExportedProgram) -> None:
    slots = slots_of(program)
    assert [slot.name for slot in slots] == ["x", "state.0", "state.1.a", "steps", "extra"]
    assert [slot.type for slot in slots] == ["float32"] * 3 + ["int", "float32"]
    assert slots[3].constant == 3
    assert all(isinstance(slot.shape[0], str) and slot.shape[1] == 3 for slot in slots if slot.dtype is not None)


def test_constants_among_the_results_are_known(program: torch.export.ExportedProgram) -> None:
    assert kept_outputs(program) == [True, True, False, False]


@pytest.mark.parametrize("keys", [("x", "state.0", "state.1.a", "extra"), ("arr_0", "1.0", "state_1_a", "3")])
def test_names_placeholders_and_positions(program: torch.export.ExportedProgram, keys: tuple[str, ...]) -> None:
    bound = bind_program(program, slots_of(program), dict.fromkeys(keys, X), "b")
    assert bound.args[2] == 3
    assert isinstance(bound.args[1][1], dict)
    assert list(bound.kwargs) == ["extra"]
    program.module()(*bound.args, **bound.kwargs)


FULL = {"x": X, "state.0": X, "state.1.a": X, "extra": X}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"y": X}, r"batch 'b.npz' has key 'y', which is no argument of the program; it takes 'x', 'state.0',"),
        ({"state.0": None}, r"lacks argument 'state.0' of the program; .* the batch has 'x', 'state.1.a', 'extra'"),
        ({"x": X.astype(np.int64)}, r"argument 'x' of batch 'b.npz' has element type int64, the program takes float32"),
        ({"x": X[0]}, r"argument 'x' of batch 'b.npz' has rank 1 \(shape \[3\]\), the program takes rank 2"),
        (
            {"extra": X[:, :2]},
            r"argument 'extra' .* has size 2 on axis 1 \(shape \[2, 2\]\), the program takes 3 there",
        ),
        ({"steps": np.array(4)}, r"argument 'steps' of batch 'b.npz' is 4, but the program was exported with 3"),
    ],
)
def test_misfits_name_the_argument(program: torch.export.ExportedProgram, changes: dict[str, Any], text: str) -> None:
    sample = {key: value for key, value in {**FULL, **changes}.items() if value is not None}
    with pytest.raises(BatchError, match=text):
        bind_program(program, slots_of(program), sample, "b.npz")


def test_a_constant_may_be_repeated(program: torch.export.ExportedProgram) -> None:
    assert bind_program(program, slots_of(program), {**FULL, "steps": np.array(3)}, "b").args[2] == 3


def test_an_axis_that_was_opened_and_then_fixed_is_a_number() -> None:
    class Square(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.reshape(2, -1)

    fixed = export(Square(), (torch.ones(2, 3),), dynamic_shapes=({0: Dim.AUTO},), strict=False)
    assert slots_of(fixed)[0].shape == (2, 3)


def test_numbers_that_may_change_are_refused() -> None:
    class Power(torch.nn.Module):
        def forward(self, x: Any, n: int) -> Any:
            return x * n

    dynamic = export(Power(), (torch.ones(2), 3), dynamic_shapes=(None, Dim.DYNAMIC), strict=False)
    with pytest.raises(ExportFailed, match=r"argument 'n' of the program is a number that may change between calls"):
        slots_of(dynamic)
