"""Tracing modules: names, axes, state, and what cannot be traced, in the exporter's own words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from converter.errors import BatchError, ModelError, OptionError
from converter.source.torch_program import trace
from converter.source.torch_program.load import from_exported, from_module
from converter.source.torch_program.reasons import ExportFailed
from tests.torch.models import Tagger, floats, lstm

Traced = Callable[..., tuple[Any, Path]]
X = floats(2, 4)


def sizes(path: Path, name: str) -> list[int | str]:
    graph = onnx.load(path / "model.onnx").graph
    value = next(v for v in (*graph.input, *graph.output) if v.name == name)
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.fc(x)
        return {"y": y, "x": x, "same": y, "rows": x.shape[0], "three": 3, "none": None}


def test_results_keep_their_names_and_constants_get_none(traced: Traced) -> None:
    facts, folder = traced(Affine(), {"x": X})
    graph = onnx.load(folder / "model.onnx").graph
    assert [v.name for v in graph.output] == ["y", "output.x", "same", "rows"]
    assert [output.name for output in facts.outputs] == ["y", "output.x", "same", "rows"]
    onnx.checker.check_model(onnx.load(folder / "model.onnx"), full_check=True)
    with np.load(folder / "expected" / "0.npz") as expected:
        assert expected["rows"].dtype == np.int64
        assert np.array_equal(expected["output.x"], X)


def test_a_callers_program_is_left_as_it_was(traced: Traced) -> None:
    program = torch.export.export(Affine(), (torch.from_numpy(X),))
    before = str(program)
    traced(from_exported(program), {"x": X})
    assert str(program) == before
    assert list(program.module()(torch.from_numpy(X))) == ["y", "x", "same", "rows", "three", "none"]


def test_the_batch_axis_is_open_by_default_even_for_one_row(traced: Traced) -> None:
    facts, folder = traced(Affine(), {"x": X[:1]})
    assert facts.dynamic == ("x:0",)
    assert facts.inputs[0].shape == ("dynamic", 4)
    assert isinstance(sizes(folder, "x")[0], str)
    assert sizes(folder, "x")[1] == 4


def test_axes_in_which_the_batches_differ_are_open(traced: Traced) -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1)

    facts, folder = traced(Sum(), {"x": X}, {"x": X[:, :3]})
    assert facts.dynamic == ("x:0", "x:1")
    assert sorted(p.name for p in (folder / "expected").iterdir()) == ["0.npz", "1.npz"]


def test_axes_that_are_asked_for(traced: Traced) -> None:
    module, sample = lstm()
    facts, _ = traced(module, sample, dynamic=("state.0:1", "state.1:1"))
    assert facts.dynamic == ("frames:0", "state.0:1", "state.1:1")


def test_an_axis_that_cannot_be_open_is_told(traced: Traced) -> None:
    module, sample = lstm()
    facts, _ = traced(module, sample)
    assert facts.dynamic == ()
    assert any("axis 0 of 'frames', 'state.0', 'state.1' is fixed" in text for _, text in facts.notes)


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ("y:0", r"--dynamic y:0: the program has no argument 'y'; it takes 'x' \(write NAME:AXIS\)"),
        ("x:2", "--dynamic x:2: argument 'x' has rank 2, so its axes are 0 to 1"),
        ("x:a", "argument 'x' has rank 2"),
    ],
)
def test_axes_that_do_not_exist(traced: Traced, wish: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        traced(Affine(), {"x": X}, dynamic=(wish,))


def test_an_axis_that_the_program_fixed(traced: Traced) -> None:
    program = from_exported(torch.export.export(Affine(), (torch.from_numpy(X),)))
    with pytest.raises(OptionError, match=r"was exported with size 2 fixed there; export it again with dynamic_shapes"):
        traced(program, {"x": X}, dynamic=("x:0",))


def test_weights_beside_the_model_when_they_are_large(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.source.torch_program.export.INLINE_LIMIT", 10)
    _, folder = traced(Affine(), {"x": X})
    assert (folder / "model.onnx.data").exists()
    onnx.checker.check_model(str(folder / "model.onnx"))


@pytest.mark.parametrize(("to", "opset"), [("fp16", 20), ("bf16", 22)])
def test_the_opset_has_what_the_format_needs(traced: Traced, to: str, opset: int) -> None:
    facts, folder = traced(Affine(), {"x": X}, to=to)
    assert facts.opset == opset
    assert onnx.load(folder / "model.onnx").opset_import[0].version == opset


@pytest.mark.parametrize(
    ("norm", "op_type"),
    [
        (nn.GroupNorm(2, 4), "GroupNormalization"),
        (nn.RMSNorm(4), "RMSNormalization"),
        (nn.LayerNorm(4), "LayerNormalization"),
    ],
)
def test_norms_stay_whole(traced: Traced, norm: nn.Module, op_type: str) -> None:
    _, folder = traced(nn.Sequential(norm), {"input": X})
    assert [n.op_type for n in onnx.load(folder / "model.onnx").graph.node] == [op_type]


def test_metadata_has_no_folders(traced: Traced) -> None:
    _, folder = traced(Affine(), {"x": X})
    node = next(n for n in onnx.load(folder / "model.onnx").graph.node if n.op_type == "Gemm")
    metadata = {entry.key: entry.value for entry in node.metadata_props}
    assert 'File "test_trace.py", line' in metadata["pkg.torch.onnx.stack_trace"]
    assert b"/tests/torch" not in (folder / "model.onnx").read_bytes()


# ------------------------------------------------------------------------------------------ eval mode, state


def test_a_callers_module_is_left_as_it_was(traced: Traced) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    module[0].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    facts, _ = traced(module, {"input": X})
    assert facts.mode == "eval mode, for the trace (3 modules were training)"
    assert [m.training for m in module.modules()] == [True, False, True, True]
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


def test_state_in_buffers_is_put_back(traced: Traced) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x.sum())
            return x + self.seen

    module = Counting()
    facts, _ = traced(module, {"x": X})
    assert float(module.seen) == 0.0
    assert facts.notes == (trace.KEEPS_STATE,)


def test_state_in_attributes_is_refused(traced: Traced) -> None:
    class Remembering(nn.Module):
        last: Any = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.last + x.detach()
            return x + self.last

    with pytest.raises(ExportFailed, match=r"two equal calls of the program give different results on batch 'batch 0'"):
        traced(Remembering(), {"x": X})


def test_half_precision_modules_are_refused() -> None:
    with pytest.raises(ModelError, match=r"parameters of type bfloat16, float16; .* call .float\(\)"):
        from_module(nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2).bfloat16()))


# ------------------------------------------------------------------------------------------ refusals


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


class Looping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(int(x.abs().max().item()) + 1):
            x = x * 2
        return x


class ByTheBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, -1) @ torch.ones(4, 3)


class OutOfTorch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sort(x.numpy()))


class NoForm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.svd(x)[1]


@pytest.mark.parametrize(
    ("module", "dynamic", "text"),
    [
        (Branching(), (), r"torch.export failed: Could not guard on data-dependent .*test_trace.py:\d+ in forward"),
        (Looping(), (), r"torch.export failed: Could not extract specialized integer from data-dependent .*torch.cond"),
        (ByTheBatch(), ("x:0",), r"your code specialized it to be a constant \(2\).*leave that --dynamic out"),
        (OutOfTorch(), (), r"torch.export failed: .*it leaves PyTorch on the way"),
        (NoForm(), (), r"torch.onnx.export\(dynamo=True\) failed: No ONNX function found for .*linalg_svd"),
    ],
)
def test_the_exporters_reason_is_quoted(traced: Traced, module: nn.Module, dynamic: tuple[str, ...], text: str) -> None:
    with pytest.raises(ExportFailed, match=text):
        traced(module, {"x": X}, dynamic=dynamic)


def test_a_size_written_into_the_program_closes_the_axis(traced: Traced) -> None:
    facts, _ = traced(ByTheBatch(), {"x": X})
    assert facts.dynamic == ()


def test_dropout_left_on(traced: Traced) -> None:
    class Dropping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5, training=True)

    exported = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), (torch.from_numpy(X),))
    with pytest.raises(ExportFailed, match=r"dropout is left on \(test_trace.py:\d+\).*training=self.training"):
        traced(Dropping(), {"x": X})
    with pytest.raises(ExportFailed, match=r"dropout is left on \(module '1', .*call model.eval\(\) before"):
        traced(from_exported(exported), {"input": X})


def test_arguments_written_in_place_stay_the_callers(traced: Traced) -> None:
    class Shifting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return x * 2

    given = X.copy()
    facts, folder = traced(Shifting(), {"x": given})
    assert np.array_equal(given, X)
    with np.load(folder / "expected" / "0.npz") as expected:
        assert np.allclose(expected["output"], (X + 1) * 2)
    note = "the program writes into its argument 'x'; an ONNX model leaves its inputs as they are"
    assert ("state", note) in facts.notes


def test_a_batch_the_program_fails_on(traced: Traced) -> None:
    with pytest.raises(BatchError, match=r"the program fails on batch 'batch 0': mat1 and mat2 .* x float32\[2, 3\]"):
        traced(Affine(), {"x": X[:, :3]})


def test_batches_with_different_arguments(traced: Traced) -> None:
    class Optional(nn.Module):
        def forward(self, x: torch.Tensor, mask: Any = None) -> torch.Tensor:
            return x if mask is None else x * mask

    with pytest.raises(BatchError, match=r"'batch 1' gives the arguments x, mask, the first batch x; all batches must"):
        traced(Optional(), {"x": X}, {"x": X, "mask": X})


def test_batches_with_different_results(traced: Traced) -> None:
    class Growing(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (x, x) if x.shape[1] > 3 else (x,)

    with pytest.raises(BatchError, match=r"the program returns 1 values on batch 'batch 1' and 2 on the first one"):
        traced(Growing(), {"x": X}, {"x": X[:, :3]})


def test_nested_state_keeps_its_names(traced: Traced) -> None:
    module, sample = lstm()
    facts, _ = traced(module, sample)
    assert isinstance(module, Tagger)
    assert [(i.name, i.argument) for i in facts.inputs] == [
        ("frames", "frames"),
        ("state.0", "state[0]"),
        ("state.1", "state[1]"),
    ]
    assert [(o.name, o.result) for o in facts.outputs] == [
        ("output.0", "result[0]"),
        ("output.1.0", "result[1][0]"),
        ("output.1.1", "result[1][1]"),
    ]
