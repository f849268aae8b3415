"""What every converted program is held to."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from torch import nn

import converter
from converter.source.torch_program.arguments import Bound, bind, parameters_of
from converter.types import Report
from tests.torch.models import Case, Sample

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


def check_exported(case: Case, tmp_path: Path) -> None:
    """From a ``.pt2`` to FP16 in ONNX and as a mixed program, and to BF16."""
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
