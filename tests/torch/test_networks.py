"""Convolutional and recurrent networks, real weights among them, from ``.pt2`` and TorchScript."""

from __future__ import annotations

from pathlib import Path

import pytest

import converter
from tests.torch.checking import check, check_exported, save_script
from tests.torch.models import CASES, NETWORKS, Case, package_file, voice


@pytest.mark.parametrize("case", NETWORKS, ids=lambda case: case.name)
def test_exported_programs(case: Case, tmp_path: Path) -> None:
    check_exported(case, tmp_path)


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
