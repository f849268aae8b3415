"""Exported graphs that draw random numbers or normalise by the batch are refused by operator, module and line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from converter.source.torch_program.arguments import Bound
from converter.source.torch_program.capture import capture, check_deterministic
from converter.source.torch_program.reasons import ExportFailed

X = torch.ones(2, 4)


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x)


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y + torch.rand_like(y), lambda y: y.clone(), (x,))


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Dropout()), r"dropout is left on \(module '1', torch/nn/modules/"),
        (nn.Sequential(nn.BatchNorm1d(4)), r"batch normalisation is in training mode \(module '0'"),
        (Noisy(), r"the program draws random numbers \(aten.randn_like, test_capture.py:\d+\)"),
        (Branches(), r"draws random numbers \(aten.rand_like"),
    ],
)
def test_refused_in_training_mode(module: nn.Module, text: str) -> None:
    program = torch.export.export(module.train(), (X,), strict=False)
    with pytest.raises(ExportFailed, match=text):
        check_deterministic(program)


@pytest.mark.parametrize("module", [nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(4)), nn.Dropout(0.0).train()])
def test_eval_mode_passes(module: nn.Module) -> None:
    if not isinstance(module, nn.Dropout):
        module.eval()
    check_deterministic(torch.export.export(module, (X,), strict=False))


def test_closed_axes_come_with_the_reason() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[0] % 2 == 0, "even rows only"
            return x

    program, closed = capture(Picky(), Bound((X,), {}), ["x"], {"x": {0: False}})
    assert program is not None
    assert closed == ""


def test_modules_that_take_any_number_of_arguments() -> None:
    class Total(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return tensors[0] + tensors[1]

    program, _ = capture(Total(), Bound((X, X + 1), {}), None, {})
    assert len(program.graph_signature.user_inputs) == 2
