"""A batch's keys become a program's arguments, and a misfit names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from converter.errors import BatchError
from converter.ranges.batches import flat_sample
from converter.source.torch_program.arguments import bind, leaves_of, parameters_of, results_of

X = np.ones((2, 3), np.float32)


class Nested(torch.nn.Module):
    def forward(self, x: Any, state: Any, steps: int, scale: float = 1.0, *, config: Any = None) -> Any:
        return x


class Any_(torch.nn.Module):  # noqa: N801 - takes anything
    def forward(self, *tensors: Any, **more: Any) -> Any:
        return tensors


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor, parts: list[torch.Tensor], rate: int, loud: bool = False) -> torch.Tensor:
        return x


PARAMETERS = parameters_of(Nested())


def test_parameters_of_modules() -> None:
    assert PARAMETERS is not None
    assert [(p.name, p.required, p.scalar, p.keyword_only) for p in PARAMETERS] == [
        ("x", True, "", False),
        ("state", True, "", False),
        ("steps", True, "int", False),
        ("scale", False, "float", False),
        ("config", False, "", True),
    ]
    assert parameters_of(Any_()) is None


def test_parameters_of_scripts() -> None:
    found = parameters_of(torch.jit.script(Scripted()))
    assert found is not None
    assert [(p.name, p.required, p.scalar, p.takes_list) for p in found] == [
        ("x", True, "", False),
        ("parts", True, "", True),
        ("rate", True, "int", False),
        ("loud", False, "bool", False),
    ]


def test_nested_samples_are_spelled_out() -> None:
    flat = flat_sample({"x": X, "state": (X, {"a": X}), "sizes": [1, 2], "config": {}})
    assert list(flat) == ["x", "state.0", "state.1.a", "sizes"]


def test_names_positions_and_numbers() -> None:
    by_name = bind({"x": X, "state.0": X, "state.1.a": 2 * X, "steps": np.array(3)}, PARAMETERS, "b")
    by_place = bind({"arr_0": X, "1.0": X, "arr_1.1.a": 2 * X, "2": 3}, PARAMETERS, "b")
    for bound in (by_name, by_place):
        assert isinstance(bound.args[1], tuple)
        assert torch.equal(bound.args[1][1]["a"], torch.full((2, 3), 2.0))
        assert bound.args[2] == 3
        assert type(bound.args[2]) is int
        assert bound.kwargs == {}


def test_an_argument_behind_a_left_out_one_goes_by_name() -> None:
    bound = bind({"x": X, "state": X, "steps": 1, "config": X}, PARAMETERS, "b")
    assert len(bound.args) == 3
    assert list(bound.kwargs) == ["config"]


def test_lists_where_a_script_wants_lists() -> None:
    parameters = parameters_of(torch.jit.script(Scripted()))
    bound = bind({"x": X, "parts.0": X, "parts.1": X, "rate": np.int64(8)}, parameters, "b")
    assert isinstance(bound.args[1], list)


def test_any_number_of_arguments_goes_by_position() -> None:
    bound = bind({"arr_1": X, "arr_0": 2 * X}, None, "b")
    assert [float(t[0, 0]) for t in bound.args] == [2.0, 1.0]


def test_arguments_are_copies() -> None:
    given = X.copy()
    bound = bind({"arr_0": given}, None, "b")
    bound.args[0].add_(1)
    assert given[0, 0] == 1.0
    fresh = bound.copied()
    fresh.args[0].zero_()
    assert float(bound.args[0][0, 0]) == 2.0


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        ({"x": X}, r"batch 'b.npz' lacks argument 'state' of the program; add it .* The program takes 'x', "),
        ({"y": X}, r"has key 'y', which is no argument of the program; it takes 'x', 'state', 'steps'"),
        ({"9": X}, r"has key '9', which is no argument"),
        ({"x": X, "x.0": X}, r"has key 'x.0' beside a key 'x' that it would be part of"),
        ({"x": X, "state.0": X, "state.2": X}, r"has parts '0', '2' of argument 'state'; they must count from 0"),
        ({"x": np.array(["a"])}, r"argument 'x' of batch 'b.npz' has element type <U1; a program takes floats"),
        ({"x": X.astype(np.float64)}, r"has element type float64; convert it with .astype\('float32'\)"),
    ],
)
def test_misfits_name_the_argument(sample: dict[str, Any], text: str) -> None:
    with pytest.raises(BatchError, match=text):
        bind(sample, PARAMETERS, "b.npz")


def test_a_name_where_only_positions_are() -> None:
    with pytest.raises(BatchError, match=r"it takes any number of arguments by position \(0, 1, ...\)"):
        bind({"x": X}, None, "b.npz")


def test_leaves_have_names_and_ways() -> None:
    x = torch.ones(2)
    found = leaves_of((x, (x, {"a": x}), 3), {"config": [x]}, ["x", "state", "steps", "config"])
    assert [(leaf.name, leaf.path) for leaf in found] == [
        ("x", "x"),
        ("state.0", "state[0]"),
        ("state.1.a", "state[1]['a']"),
        ("steps", "steps"),
        ("config.0", "config[0]"),
    ]
    assert [leaf.name for leaf in leaves_of((x,), {}, None)] == ["0"]


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (1, ["output"]),
        ((1, {"z": 2}), ["output.0", "output.1.z"]),
        ({"logits": 1, "x": 2}, ["logits", "output.x"]),
        ({"": 1}, ["output."]),
    ],
)
def test_results_get_names_that_no_input_has(result: Any, names: list[str]) -> None:
    assert [leaf.name for leaf in results_of(result, ["x"])] == names
