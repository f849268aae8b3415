"""TorchScript to ONNX: three ways, in order, and the report says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from converter.errors import ModelError
from converter.source.torch_program.arguments import Leaf
from converter.source.torch_program.load import Program, from_module
from converter.source.torch_program.reasons import ExportFailed
from converter.source.torch_program.record import record
from converter.source.torch_program.scripted import CONVERTER, LEGACY, RECORDING, _settle
from tests.torch.models import floats, lstm

Traced = Callable[..., tuple[Any, Path]]
X = floats(2, 4)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(x))


class Keyed(nn.Module):
    """Gives a dict, which the legacy exporter cannot write."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"double": x * 2}


class Rated(nn.Module):
    """Takes a number, and branches on it and on its own state: neither exporter takes that."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(0)

    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        y = x * 2 if rate == 16000 else x
        if len(self.seen) > 0:
            y = y + self.seen
        self.seen = y
        return y


class ByValue(nn.Module):
    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        return x * rate if bool(x.sum() > 0) else x


def scripted(module: nn.Module) -> Program:
    return from_module(torch.jit.script(module.eval()))


def test_the_legacy_exporter_comes_first_and_keeps_the_batch_open(traced: Traced) -> None:
    facts, folder = traced(scripted(Plain()), {"x": X})
    assert facts.exporter == LEGACY
    assert facts.dynamic == ("x:0",)
    assert [n.op_type for n in onnx.load(folder / "model.onnx").graph.node] == ["Gemm", "Relu"]


def test_names_of_nested_arguments_and_results(traced: Traced) -> None:
    module, sample = lstm()
    facts, folder = traced(scripted(module), sample)
    graph = onnx.load(folder / "model.onnx").graph
    assert [v.name for v in graph.input] == ["frames", "state.0", "state.1"]
    assert [v.name for v in graph.output] == ["output.0", "output.1.0", "output.1.1"]
    assert any("the batch axis is fixed: with twice as many rows Expected hidden" in text for _, text in facts.notes)


def test_axes_that_are_asked_for_stay_open(traced: Traced) -> None:
    module, sample = lstm()
    facts, _ = traced(scripted(module), sample, dynamic=("frames:1",))
    assert facts.dynamic == ("frames:1",)


def test_a_trace_with_a_size_written_into_it_closes_the_batch_axis(traced: Traced) -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, -1)

    facts, _ = traced(from_module(torch.jit.trace(Flat(), torch.from_numpy(X))), {"x": X})
    assert facts.dynamic == ()
    assert any("a size is written into the program" in text for _, text in facts.notes)


def test_torchs_converter_comes_second(traced: Traced) -> None:
    facts, folder = traced(scripted(Keyed()), {"x": X})
    assert facts.exporter.startswith(CONVERTER)
    assert [v.name for v in onnx.load(folder / "model.onnx").graph.output] == ["double"]
    assert any(f"not used: {LEGACY}" in text for _, text in facts.notes)


def test_a_converter_that_errs_is_not_believed(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export import converter

    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"double": x * 2.001}

    wrong = torch.export.export(Wrong(), (torch.from_numpy(X),))
    monkeypatch.setattr(converter.TS2EPConverter, "convert", lambda self: wrong)
    facts, _ = traced(scripted(Keyed()), {"x": X})
    assert facts.exporter.startswith(RECORDING)
    assert any("result 0 differs from the program's by 0.0005 (relative L2)" in text for _, text in facts.notes)


def test_a_recording_comes_last(traced: Traced, tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(Rated().eval()), tmp_path / "rated.pt")

    def load() -> Program:
        program = from_module(torch.jit.load(tmp_path / "rated.pt"))
        program.reload = load
        return program

    facts, folder = traced(load(), {"x": X, "rate": np.array(16000)})
    assert facts.exporter.startswith(RECORDING)
    assert [(i.name, i.fixed) for i in facts.inputs] == [("x", ""), ("rate", "16000")]
    assert facts.dynamic == ()
    assert "starts every run from the state it was saved with" in dict(facts.notes)["state"]
    with np.load(folder / "expected" / "0.npz") as expected:
        assert np.allclose(expected["output"], X * 2)


def test_a_way_that_depends_on_the_arguments_is_no_recording(traced: Traced) -> None:
    with pytest.raises(ExportFailed, match=r"cannot be turned into ONNX in any of 3 ways.*reads the value of "):
        traced(scripted(ByValue()), {"x": X, "rate": np.array(3)})


def test_recordings_of_operators_that_write_in_place() -> None:
    weight = torch.full((2,), 3.0)

    def run() -> tuple[torch.Tensor, list[torch.Tensor]]:
        y = x * weight
        y.add_(1)
        parts = y.split(1)
        scratch = torch.zeros(2)
        scratch[0] = parts[1][0]
        return y, [scratch, parts[0]]

    x = torch.ones(2)
    graph = record(run, [x])
    y, scratch, part = graph(torch.tensor([1.0, 2.0]))
    assert y.tolist() == [4.0, 7.0]
    assert scratch.tolist() == [7.0, 0.0]
    assert part.tolist() == [4.0]
    assert weight.tolist() == [3.0, 3.0]


def test_a_recording_starts_from_the_weights_it_found() -> None:
    held = torch.zeros(2)
    graph = record(lambda: held.add_(x) * 1.0, [x := torch.ones(2)])
    assert held.tolist() == [1.0, 1.0]
    assert graph(torch.ones(2))[0].tolist() == [1.0, 1.0]


def test_constants_may_decide_the_way() -> None:
    sign = torch.ones(1)
    graph = record(lambda: x * 2 if bool(sign > 0) else x, [x := torch.ones(2)])
    assert graph(torch.ones(2))[0].tolist() == [2.0, 2.0]


# ------------------------------------------------------------------------------------------ odd results and arguments


class Sized(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[int, torch.Tensor, int, torch.Tensor]:
        return x.size(0), x * 2, 7, x + 1


def test_results_that_are_no_tensors_shift_no_names(traced: Traced) -> None:
    facts, folder = traced(scripted(Sized()), {"x": X})
    assert facts.exporter == LEGACY
    assert [output.name for output in facts.outputs] == ["output.1", "output.3"]
    graph = onnx.load(folder / "model.onnx").graph
    assert [v.name for v in graph.output] == ["output.1", "output.3"]
    assert [n.op_type for n in graph.node if n.op_type not in ("Constant", "Identity")] == ["Mul", "Add"]


def test_none_among_the_results(traced: Traced) -> None:
    class Pair(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Optional[torch.Tensor]]:  # noqa: UP045
            return x * 2, None

    facts, folder = traced(scripted(Pair()), {"x": X})
    assert [output.name for output in facts.outputs] == ["output.0"]
    assert [v.name for v in onnx.load(folder / "model.onnx").graph.output] == ["output.0"]


def test_arguments_without_effect_stay_inputs(traced: Traced) -> None:
    class Second(nn.Module):
        def forward(self, idle: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    given = torch.from_numpy(X)
    module = torch.jit.trace(Second(), (given.long(), given))
    facts, folder = traced(from_module(module), {"idle": X.astype(np.int64), "x": X})
    assert facts.exporter == LEGACY
    graph = onnx.load(folder / "model.onnx").graph
    assert [(v.name, v.type.tensor_type.elem_type) for v in graph.input] == [("idle", 7), ("x", 1)]
    assert [d.dim_param or d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == ["idle_0", 4]
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)


def test_a_module_without_forward() -> None:
    class Tool(nn.Module):
        @torch.jit.export
        def other(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(ModelError, match="the TorchScript module has no method 'forward', which is what is converted"):
        from_module(torch.jit.script(Tool()))


def test_a_graph_with_other_results_is_not_used(tmp_path: Path) -> None:
    value = Leaf("y", "result", torch.zeros(2))
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(ExportFailed, match="it wrote 1 outputs for 2 results"):
        _settle(tmp_path / "m.onnx", [Leaf("x", "x", torch.zeros(2))], [value, value], {})
