"""Public models of seven kinds, both formats: valid, loadable, accurate, mostly narrow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from converter import convert
from converter.types import Report
from tests.real.models import MODELS, RealModel

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real")]

FP16_LIMITS = {
    "magika": 5e-3,
    "silero-vad": 5e-3,
    "silero-16k-op15": 5e-3,
    "silero-16k-sequence": 5e-3,
    "silero-op18-ifless": 5e-3,
    "silero-half": 5e-3,
    "ocr-classifier": 5e-3,
    "ocr-detector": 2e-2,
    "ocr-recogniser": 2e-2,
    "basic-pitch": 1e-2,
}
BF16_LIMIT = 5e-2
NARROW_FLOPS = 0.8


@dataclass(frozen=True)
class Converted:
    """One conversion and where it was written."""

    model: RealModel
    to: str
    path: Path
    report: Report


CASES = [(model, to) for model in MODELS for to in ("fp16", "bf16")]


@pytest.fixture(scope="module", params=CASES, ids=[f"{model.name}-{to}" for model, to in CASES])
def converted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    model, to = request.param
    file = model.file
    if file is None:
        pytest.skip(f"package {model.package} is not installed (pip install --no-deps -r tests/real/requirements.txt)")
    path = tmp_path_factory.mktemp("real") / f"{model.name}.{to}.onnx"
    batches = model.batches(file)
    # Every batch is run on the rewritten graph too and must give the plan's bits: convert raises if one does not.
    report = convert(file, batches, to=to, output=path, checked_batches=len(batches)).report
    return Converted(model, to, path, report)


def test_is_valid(converted: Converted) -> None:
    onnx.checker.check_model(str(converted.path), full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(converted.path), check_type=True, strict_mode=True)


def test_keeps_its_interface(converted: Converted) -> None:
    assert converted.model.file is not None
    given, made = onnx.load(converted.model.file).graph, onnx.load(converted.path).graph
    for side in ("input", "output"):
        wanted, have = getattr(given, side), getattr(made, side)
        assert [v.name for v in wanted] == [v.name for v in have]
        assert [v.type.tensor_type.elem_type for v in wanted] == [v.type.tensor_type.elem_type for v in have]


def test_loads(converted: Converted) -> None:
    if converted.to == "bf16":
        pytest.skip("ONNX Runtime's CPU provider has no BF16 arithmetic; the interpreter ran it")
    session = ort.InferenceSession(converted.path, providers=["CPUExecutionProvider"])
    assert converted.model.file is not None
    outputs = session.run(None, converted.model.batches(converted.model.file)[0])
    assert all(np.isfinite(o).all() for o in outputs)


def test_is_accurate(converted: Converted) -> None:
    assert converted.report.verdict.status == "pass"
    limit = FP16_LIMITS[converted.model.name] if converted.to == "fp16" else BF16_LIMIT
    for output in converted.report.outputs:
        assert output.figures is not None
        assert output.figures.misplaced_nonfinite == 0
        assert output.figures.rel_l2_error is not None
        assert output.figures.rel_l2_error <= limit, output.value


def test_is_mostly_narrow(converted: Converted) -> None:
    assert converted.report.summary.narrow_flops_share >= NARROW_FLOPS
    assert converted.report.summary.narrow_nodes > 0


def test_each_layer_is_named_with_a_reason(converted: Converted) -> None:
    report = converted.report
    assert all(d.reason for d in report.decisions)
    ran = [layer for layer in report.layers if layer.status != "not run"]
    assert ran
    assert all(layer.accumulated is not None for layer in ran)
