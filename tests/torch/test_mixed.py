"""Mixed ExportedPrograms: where casts and clamps stand, what weights become, what cannot be made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from converter.source.torch_program.exported import bind_program, slots_of
from converter.source.torch_program.mixed import Recipe, hand_back, mix
from converter.source.torch_program.reasons import ExportFailed

X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(self.fc(x)).view(2, 4), -1) * 2


def exported(module: nn.Module, *args: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), args or (torch.from_numpy(X),), strict=False)


def mixed(program: torch.export.ExportedProgram, recipe: Recipe) -> tuple[torch.export.ExportedProgram, Any]:
    slots = slots_of(program)
    bound = bind_program(program, slots, {slots[0].name: X}, "b")
    return mix(program, recipe, bound, slots, {slots[0].placeholder: slots[0].name})


def casts(program: torch.export.ExportedProgram) -> list[str]:
    kinds = [n.args[1] for n in program.graph.nodes if str(n.target).startswith("aten.to.")]
    return [str(kind).removeprefix("torch.") for kind in kinds]


def formats(program: torch.export.ExportedProgram) -> dict[str, str]:
    return {n.name: str(n.meta["val"].dtype).removeprefix("torch.") for n in program.graph.nodes
            if n.op == "call_function" and isinstance(n.meta.get("val"), torch.Tensor)}  # fmt: skip


NODES = {"linear": "narrow", "batch_norm": "narrow", "softmax": "wide", "mul": "narrow"}


def test_casts_stand_where_formats_meet() -> None:
    result, counts = mixed(exported(Net()), Recipe("fp16", NODES))
    found = formats(result)
    assert found["linear"] == found["batch_norm"] == found["view"] == "float16"
    assert found["softmax"] == "float32"
    assert casts(result) == ["float16", "float32", "float16", "float32"]
    assert (counts.nodes, counts.narrow, counts.partly) == (5, 3, [])
    assert [title.partition(" ")[0] for title in counts.unmatched] == ["view"]
    assert result.graph_signature.user_outputs


def test_weights_are_stored_narrow_and_once() -> None:
    result, _ = mixed(exported(Net()), Recipe("bf16", NODES))
    weights = {name: tensor.dtype for name, tensor in result.state_dict.items()}
    assert {weights["fc_weight_bf16"], weights["fc_bias_bf16"]} == {torch.bfloat16}
    assert "fc.weight" not in weights
    assert {d for n, d in weights.items() if "norm" in n} == {torch.float32}


def test_a_weight_with_readers_of_both_formats() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.matmul(x, self.weight) + torch.mul(x[:1], self.weight[:1])

    result, _ = mixed(exported(Shared()), Recipe("fp16", {"matmul": "narrow", "mul": "wide", "add": "wide"}))
    assert {str(t.dtype) for t in result.state_dict.values()} == {"torch.float16", "torch.float32"}


def test_clamps_and_limits() -> None:
    class Big(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([[-3e38, 0.0, 1.0, 2.0]]))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x * 1e6), x + self.mask

    program = exported(Big())
    nodes = {"mul": "wide", "relu": "narrow", "add": "narrow"}
    recipe = Recipe("fp16", nodes, clamps={"mul": 65504.0, "x": 1.0}, limits={"mask": 65504.0})
    result, _ = mixed(program, recipe)
    large, shifted = result.module()(torch.from_numpy(X))
    assert float(large.max()) == 65504.0
    assert torch.isfinite(shifted).all()
    assert float(shifted[1, 3]) == 3.0


def test_a_clamp_behind_a_narrow_operator() -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 60000.0

    result, _ = mixed(exported(Scale()), Recipe("fp16", {"mul": "narrow"}, clamps={"mul": 65504.0}))
    assert float(result.module()(torch.from_numpy(X)).max()) == 65504.0


def test_inputs_and_outputs_may_be_narrow() -> None:
    nodes = {**NODES, "softmax": "narrow"}
    recipe = Recipe("fp16", nodes, narrow_inputs=frozenset(("x",)), narrow_outputs=frozenset((0,)))
    result, _ = mixed(exported(Net()), recipe)
    assert casts(result) == []
    assert result.module()(torch.from_numpy(X).half()).dtype is torch.float16


def test_types_written_into_the_program_follow() -> None:
    class Typed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(4, dtype=torch.float32)

    result, _ = mixed(exported(Typed()), Recipe("fp16", {"arange": "narrow", "add": "narrow"}))
    assert formats(result)["arange"] == "float16"


def test_operators_that_disagree_and_bodies_stay_wide() -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y + 1, (x,))

    result, counts = mixed(exported(Net()), Recipe("fp16", {**NODES, "linear": "partly"}))
    assert formats(result)["linear"] == "float32"
    assert counts.partly[0].startswith("linear")
    result, counts = mixed(exported(Chosen()), Recipe("fp16", {"cond": "narrow", "sum_1": "narrow"}))
    assert counts.partly[0].startswith("cond")
    assert result.module()(torch.from_numpy(X)).dtype is torch.float32


def test_lists_of_results_follow_their_operator() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = x.split(2, dim=1)
            return left * right

    result, _ = mixed(exported(Halves()), Recipe("fp16", {"split": "narrow", "mul": "narrow"}))
    assert formats(result)["getitem"] == formats(result)["mul"] == "float16"


def test_the_whole_is_saved_with_its_results(tmp_path: Path) -> None:
    torch.export.save(exported(Net()), tmp_path / "program.pt2")
    target = tmp_path / "mixed.pt2"
    counts = hand_back(tmp_path, "program.pt2", Recipe("fp16", NODES), {"renamed": X}, target)
    assert counts["narrow"] == 3
    again = torch.export.load(target)
    with np.load(target.with_suffix(".npz")) as results:
        assert np.array_equal(results["0"], again.module()(torch.from_numpy(X)).detach().numpy())
        assert np.allclose(results["0"], Net().eval()(torch.from_numpy(X)).detach().numpy(), atol=2e-3)


def test_kernels_that_pytorch_lacks(tmp_path: Path) -> None:
    class Inverse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.inv(x[:, :2])

    torch.export.save(exported(Inverse()), tmp_path / "program.pt2")
    recipe = Recipe("fp16", {"linalg_inv": "narrow"})
    with pytest.raises(ExportFailed, match=r"PyTorch cannot (run it on the CPU|export it): "):
        hand_back(tmp_path, "program.pt2", recipe, {"x": X}, tmp_path / "mixed.pt2")
