"""Models people have, from the files they save them in, to FP16 and BF16 with an honest verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import converter
from converter.report.modules import module_rows
from converter.source.torch_program.arguments import Bound, bind, parameters_of
from converter.types import Report
from tests.torch.models import CASES, Case, Sample, package_file, voice

LIMITS = {"fp16": 1e-2, "bf16": 5e-2}
"""What the tests allow; the tolerances of the request are at least as strict."""


def arguments(module: nn.Module, sample: Sample) -> Bound:
    return bind(sample, parameters_of(module), "the sample")


def save_program(path: Path, module: nn.Module, sample: Sample) -> Path:
    bound = arguments(module, sample)
    torch.export.save(torch.export.export(module, bound.args, bound.kwargs, strict=False), path)
    return path


def save_script(path: Path, how: str, module: nn.Module, sample: Sample) -> Path:
    args = arguments(module, sample).args
    made = torch.jit.script(module) if how == "script" else torch.jit.trace(module, args, strict=False)
    torch.jit.save(made, path)
    return path


def check(report: Report, to: str, output: Path) -> None:
    """Right against PyTorch before and after, and valid."""
    assert report.verdict.status == "pass", report.verdict.reasons
    facts = report.program
    assert facts is not None
    for traced, row in zip(facts.outputs, report.outputs, strict=True):
        if row.figures is None:
            continue
        assert traced.trace_rel_l2 is not None
        assert traced.trace_rel_l2 < 1e-5
        assert traced.converted_rel_l2 is not None
        assert traced.converted_rel_l2 <= LIMITS[to]
        assert row.figures.misplaced_nonfinite == 0
    assert report.summary.narrow_nodes > 0
    onnx.checker.check_model(str(output), full_check=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exported_programs(case: Case, tmp_path: Path) -> None:
    module, sample = case.build()
    path = save_program(tmp_path / "model.pt2", module, sample)
    done = converter.convert(path, sample, to="fp16", output=tmp_path / "fp16.pt2")
    check(done.report, "fp16", tmp_path / "fp16.onnx")
    facts = done.report.program
    assert facts is not None
    assert facts.exporter == "torch.onnx.export(dynamo=True)"
    assert facts.handed_back is not None
    assert facts.handed_back.status == "written", facts.handed_back.reason
    done = converter.convert(path, sample, to="bf16", output=tmp_path / "bf16.onnx")
    check(done.report, "bf16", tmp_path / "bf16.onnx")
    assert done.report.program.opset >= 22  # type: ignore[union-attr]


SCRIPTS = [case for case in CASES if case.torchscript]


@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: case.name)
def test_torchscript(case: Case, tmp_path: Path) -> None:
    module, sample = case.build()
    path = save_script(tmp_path / "model.pt", case.torchscript, module, sample)
    for to in ("fp16", "bf16"):
        done = converter.convert(path, sample, to=to, output=tmp_path / f"{to}.onnx")
        check(done.report, to, tmp_path / f"{to}.onnx")
        assert done.report.program.kind == "TorchScript"  # type: ignore[union-attr]


def test_silero_as_it_is_published(tmp_path: Path) -> None:
    path = package_file("silero_vad", "data/silero_vad.jit")
    for to in ("fp16", "bf16"):
        done = converter.convert(path, voice(), to=to, output=tmp_path / f"{to}.onnx")
        check(done.report, to, tmp_path / f"{to}.onnx")
        facts = done.report.program
        assert facts is not None
        assert facts.exporter.startswith("a recording of the operators of one run")
        assert any(f.kind == "trace-state" for f in done.report.findings)


# ------------------------------------------------------------------------------------------ named hazards


def convert_case(name: str, **options: Any) -> Report:
    module, sample = next(case for case in CASES if case.name == name).build()
    return converter.convert(module, sample, **options).report


@pytest.mark.parametrize("overflow", ["clamp", "widen"])
def test_the_residual_of_t5_passes_the_maximum_and_is_explained(overflow: str) -> None:
    report = convert_case("t5", to="fp16", overflow=overflow)
    beyond = {layer.node: layer for layer in report.layers
              if layer.observed and 65504 < layer.observed.absmax < 1e30 and layer.op_type == "Add"}  # fmt: skip
    assert beyond, "the model does not overflow: it proves nothing"
    decisions = {decision.node: decision for decision in report.decisions}
    residual = [decisions[node] for node, layer in beyond.items() if "layer_norm" not in layer.module]
    assert residual
    for decision in residual:
        assert decision.format == "fp32"
        assert decision.evidence is not None
        assert decision.evidence.number > 65504
        assert "65504" in decision.reason
    assert all(output.figures.rel_l2_error < 1e-2 for output in report.outputs if output.figures)  # type: ignore[operator]
    assert report.verdict.status == "pass"


@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_positions_beyond_4096_stay_exact_in_llama(to: str) -> None:
    report = convert_case("llama", to=to)
    kept = [d for d in report.decisions if d.rule == "integers"]
    assert kept
    assert all(d.format == "fp32" for d in kept)
    assert max(d.evidence.number for d in kept if d.evidence) >= 4097
    assert report.outputs[0].figures.rel_l2_error < LIMITS[to]  # type: ignore[union-attr,operator]


def test_layers_of_bert_add_up_by_module() -> None:
    report = convert_case("bert", to="fp16")
    rows = {row["module"]: row for row in module_rows(report.layers)}
    assert {"encoder.layer.0", "encoder.layer.1", "pooler"} <= set(rows)
    assert rows[""]["layers"] == len(report.layers)
    assert sum(row["worst"] for row in rows.values()) == 1
    line = next(layer.source_line for layer in report.layers if layer.module == "encoder.layer.0.attention.self.query")
    assert line.startswith("transformers/models/bert/modeling_bert.py:")


def test_a_folder_as_hugging_face_writes_it(tmp_path: Path) -> None:
    module, sample = next(case for case in CASES if case.name == "bert").build()
    module.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    done = converter.convert(tmp_path / "bert", sample, output=tmp_path / "bert.onnx")
    check(done.report, "fp16", tmp_path / "bert.onnx")
    facts = done.report.program
    assert facts is not None
    assert (facts.kind, facts.module) == ("Hugging Face folder", "BertModel")
    assert facts.dynamic == ("input_ids:0", "attention_mask:0")
