"""Programs through the whole line: the trace check, what a report says, and handing back."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import converter
from converter import handing_back, tracing
from converter.errors import BatchError, ModelError, NarrowcastError, OptionError, RunCrashed
from converter.handing_back import HandBack
from converter.report import read_report, to_json
from converter.source.save import OutputFailure
from converter.source.torch_program import export
from converter.source.torch_program.reasons import ExportFailed
from converter.tracing import TraceMismatch
from tests.torch.models import floats, unet

X = floats(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.second(torch.tanh(self.first(x)))
        return {"logits": logits, "best": logits.argmax(-1)}


def saved(path: Path, module: nn.Module | None = None) -> Path:
    batch = torch.export.Dim("batch", min=1, max=64)
    args = (torch.from_numpy(X),)
    torch.export.save(torch.export.export((module or Net()).eval(), args, dynamic_shapes=({0: batch},)), path)
    return path


# ------------------------------------------------------------------------------------------ the trace check


def test_the_report_compares_with_the_program_itself() -> None:
    report = converter.convert(Net(), {"x": X}).report
    facts = report.program
    assert facts is not None
    assert facts.trace_tolerance == 1e-4
    logits, best = facts.outputs
    assert logits.trace_rel_l2 is not None
    assert logits.trace_rel_l2 < 1e-6
    assert logits.converted_rel_l2 == pytest.approx(report.outputs[0].figures.rel_l2_error, rel=0.01)  # type: ignore[union-attr]
    assert (best.trace_rel_l2, best.mismatches) == (None, 0)
    assert (facts.kind, facts.module, report.model.name) == ("nn.Module", "Net", "Net")


def plant(monkeypatch: pytest.MonkeyPatch, spoil: Any) -> None:
    """Lets the exporter write a model that computes something else."""
    real = export._translate

    def wrong(program: Any, opset: int) -> Any:
        made = real(program, opset)
        spoil(made.model)
        return made

    monkeypatch.setattr(export, "_translate", wrong)


def scale_weight(model: ir.Model) -> None:
    value = model.graph.initializers["second.weight"]
    value.const_value = ir.tensor(value.const_value.numpy() * 1.01, name="second.weight")  # type: ignore[union-attr]


def test_a_planted_wrong_export_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant(monkeypatch, scale_weight)
    with pytest.raises(TraceMismatch) as caught:
        converter.convert(Net(), {"x": X}, output=tmp_path / "net.onnx")
    text = str(caught.value)
    assert text.startswith("the ONNX model that torch.onnx.export(dynamo=True) made of 'Net' does not compute what the")
    assert "output 'logits': 0.0" in text
    assert "(allowed 0.0001, relative L2)" in text
    assert caught.value.exit_status == 2
    assert not list(tmp_path.iterdir())


def test_wrong_integers_shapes_and_infinities_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def reverse(model: ir.Model) -> None:
        weight = model.graph.initializers["second.weight"]
        weight.const_value = ir.tensor(-weight.const_value.numpy(), name="second.weight")  # type: ignore[union-attr]

    def explode(model: ir.Model) -> None:
        weight = model.graph.initializers["second.bias"]
        weight.const_value = ir.tensor(np.full(3, np.inf, np.float32), name="second.bias")

    def keep_axis(model: ir.Model) -> None:
        node = next(n for n in model.graph if n.op_type == "ArgMax")
        node.attributes["keepdims"] = ir.AttrInt64("keepdims", 1)
        node.outputs[0].shape = None

    for spoil, text in (
        (reverse, r"output 'best': \d elements differ"),
        (explode, r"output 'logits': .*, 9 NaN or infinite elements misplaced"),
        (keep_axis, r"output 'best': shape \[3\] became \[3, 1\]"),
    ):
        with monkeypatch.context() as patch:
            plant(patch, spoil)
            with pytest.raises(TraceMismatch, match=text):
                converter.convert(Net(), {"x": X})


# ------------------------------------------------------------------------------------------ ways in


def test_a_file_is_traced_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = saved(tmp_path / "net.bin")
    before = set(sys.modules)
    done = converter.convert(path, [{"x": X}, {"arr_0": X[:2]}])
    assert done.report.batches == 2
    assert done.report.program is not None
    assert done.report.program.kind == "ExportedProgram"
    assert done.report.model.name == "net.bin"
    assert done.report.model.bytes == path.stat().st_size
    assert "trace" in done.report.timings
    assert not {m for m in sys.modules if m.startswith("transformers")} - before


def test_a_lone_array_is_the_only_argument(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    done = converter.convert(saved(tmp_path / "net.pt2"), tmp_path / "x.npy")
    assert done.report.verdict.status == "pass"


def test_layers_carry_module_and_line() -> None:
    module, sample = unet()
    layers = converter.convert(module, sample).report.layers
    found = {(layer.op_type, layer.module) for layer in layers}
    assert ("GroupNormalization", "down.norm") in found
    assert all(layer.source_line.startswith("models.py:") for layer in layers)


def test_the_model_in_memory_keeps_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "INLINE_LIMIT", 10)
    model = converter.convert(Net(), {"x": X}, validate=False).model
    assert model is not None
    onnx.checker.check_model(ir.to_proto(model))


def test_the_same_program_gives_the_same_bytes(tmp_path: Path) -> None:
    places = folders(tmp_path, "a", "b")
    done = [converter.convert(Net(), {"x": X}, output=tmp_path / k / "net.onnx") for k in places]
    first, second = (Path(d.files[0]).read_bytes() for d in done)
    assert first == second
    reports = [to_json(replace(d.report, timings={})) for d in done]
    assert reports[0] == reports[1]
    assert os.fsencode(tmp_path) not in first + reports[0]


def folders(root: Path, *names: str) -> tuple[str, ...]:
    for name in names:
        (root / name).mkdir()
    return names


def test_inspect_takes_programs(tmp_path: Path) -> None:
    found = converter.inspect(saved(tmp_path / "net.pt2"), {"x": X})
    assert found["model"]["name"] == "net.pt2"
    assert {"Gemm", "Tanh"} <= set(found["operators"])


@pytest.mark.parametrize("model", [object(), b"bytes"])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(ModelError, match=r"the model is a (object|bytes); give a path, an onnx.ModelProto, a torch"):
        converter.convert(model, {"x": X})


def test_a_program_needs_samples_in_any_case(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a PyTorch program is traced on a sample batch, also with --no-validate"):
        converter.convert(saved(tmp_path / "net.pt2"), validate=False)


def test_a_misfit_batch_names_the_argument_across_the_border(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match=r"argument 'x' of batch 'batch 0.npz' has size 3 on axis 1"):
        converter.convert(saved(tmp_path / "net.pt2"), {"x": X[:, :3]})


def test_errors_of_the_childs_own_kinds_keep_branch_and_code(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn_like(x)

    with pytest.raises(NarrowcastError) as caught:
        converter.convert(saved(tmp_path / "net.pt2", Noisy()), {"x": X})
    assert isinstance(caught.value, ExportFailed)
    assert (caught.value.exit_status, caught.value.code) == (2, "EXPORT_FAILED")


def test_a_program_that_kills_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(request: Any) -> Any:
        raise RunCrashed("died", node="tracing it to ONNX", signal=int(signal.SIGSEGV))

    monkeypatch.setattr(tracing, "run_isolated", died)
    with pytest.raises(RunCrashed, match=r"traces 'net.pt2' died \(signal 11\) while tracing it to ONNX; the "):
        converter.convert(saved(tmp_path / "net.pt2"), {"x": X})


# ------------------------------------------------------------------------------------------ ways out


def test_a_mixed_program_is_handed_back(tmp_path: Path) -> None:
    done = converter.convert(Net(), {"x": X}, output=tmp_path / "net.pt2")
    assert [Path(f).name for f in done.files] == ["net.onnx", "net.pt2"]
    handed = done.report.program.handed_back  # type: ignore[union-attr]
    assert handed is not None
    assert (handed.status, handed.nodes, handed.narrow) == ("written", 3, 3)
    assert dict(handed.outputs)["logits"] < 1e-3
    again = torch.export.load(tmp_path / "net.pt2")
    result = again.module()(torch.from_numpy(X[:2]))
    assert result["logits"].shape == (2, 3)
    read_report(to_json(done.report))


def test_an_onnx_model_is_not_handed_back_as_a_program(tmp_path: Path) -> None:
    converter.convert(Net(), {"x": X}, output=tmp_path / "net.onnx")
    with pytest.raises(OptionError, match=r"output 'out.pt2' asks for a PyTorch program, but the model is ONNX"):
        converter.convert(tmp_path / "net.onnx", {"x": X}, output=tmp_path / "out.pt2")


def refused(done: Any) -> str:
    handed = done.report.program.handed_back
    assert handed.status == "refused"
    assert [f.kind for f in done.report.findings].count("not-handed-back") == 1
    assert [Path(f).suffix for f in done.files] == [".onnx"]
    return str(handed.reason)


def test_an_unchecked_program_is_refused_and_the_onnx_given(tmp_path: Path) -> None:
    done = converter.convert(Net(), {"x": X}, output=tmp_path / "net.pt2", validate=False)
    assert refused(done) == "it cannot be checked: the converted ONNX model was not run"


def test_a_program_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing_back, "_differences", lambda results, converted: {"logits": 0.5})
    done = converter.convert(Net(), {"x": X}, output=tmp_path / "net.pt2")
    assert refused(done).startswith("result 'logits' differs from the converted ONNX model's by 0.5 (relative L2), ")
    assert not (tmp_path / "net.pt2").exists()


def test_a_program_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(request: Any) -> Any:
        raise ExportFailed("PyTorch cannot run it on the CPU: not implemented for 'Half'")

    monkeypatch.setattr(handing_back, "run_isolated", fails)
    done = converter.convert(Net(), {"x": X}, output=tmp_path / "net.pt2")
    assert refused(done) == "PyTorch cannot run it on the CPU: not implemented for 'Half'"


def test_a_trace_without_a_graph_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tracing.open_model

    def without(*given: Any) -> Any:
        opened = real(*given)
        (opened.folder.path / "program.pt2").unlink()
        return opened

    monkeypatch.setattr("converter.pipeline.open_model", without)
    done = converter.convert(Net(), {"x": X}, output=tmp_path / "net.pt2")
    assert refused(done) == "the program was traced without a graph that casts could be put into"


def test_lost_and_misplaced_results_count_as_infinitely_far(tmp_path: Path) -> None:
    np.savez(tmp_path / "r.npz", **{"0": np.array([1.0, np.nan], np.float32), "1": np.array([1, 2])})
    gaps = handing_back._differences(tmp_path / "r.npz", {"a": np.array([1.0, 2.0], np.float32), "b": np.array([1, 3])})
    assert gaps == {"a": float("inf"), "b": float("inf")}


def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    draft = tmp_path / "draft.pt2"
    draft.write_bytes(b"x")
    with pytest.raises(OutputFailure, match=r"output '.*missing/net.pt2' cannot be written: No such file"):
        handing_back._put(draft, tmp_path / "missing" / "net.pt2")


@pytest.mark.parametrize(("output", "asked"), [(None, None), ("a.onnx", None), ("a/b.pt2", ("a/b.pt2", "a/b.onnx"))])
def test_what_asks_for_a_program(output: str | None, asked: tuple[str, str] | None) -> None:
    found = HandBack.asked(output)
    assert (found and (str(found.pt2), str(found.onnx))) == asked


def test_narrow_interfaces_are_handed_back_too(tmp_path: Path) -> None:
    done = converter.convert(Net(), {"x": X}, output=tmp_path / "net.pt2", io_types="narrow")
    assert done.report.program.handed_back.status == "written"  # type: ignore[union-attr]
    result = torch.export.load(tmp_path / "net.pt2").module()(torch.from_numpy(X).half())
    assert result["logits"].dtype is torch.float16


def test_a_script_is_handed_back(tmp_path: Path) -> None:
    class Half(nn.Module):
        def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
            return torch.tanh(x) * 2 if rate > 1 else x

    path = tmp_path / "half.pt"
    torch.jit.save(torch.jit.script(Half()), path)
    done = converter.convert(path, {"x": X, "rate": np.array(2)}, output=tmp_path / "mixed.pt2")
    assert done.report.program.handed_back.status == "written"  # type: ignore[union-attr]
    result = torch.export.load(tmp_path / "mixed.pt2").module()(torch.from_numpy(X), 2)
    assert torch.allclose(result, torch.tanh(torch.from_numpy(X)) * 2, atol=2e-3)
