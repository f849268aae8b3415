"""Real providers: which are here, what they have kernels for, a run on the one that always is."""

from __future__ import annotations

import numpy as np
import pytest

from converter import convert
from converter.errors import OptionError
from converter.runtime import providers
from converter.runtime.providers import available, chosen_provider, run_on, target_kernels
from tests.models.build import model
from tests.models.run import floats
from tests.models.tiny import tiny


@pytest.fixture
def only_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "installed_providers", lambda: ["CPUExecutionProvider", "AzureExecutionProvider"])


class TestChoice:
    def test_none_and_cpu(self) -> None:
        assert chosen_provider("none") is None
        assert chosen_provider("cpu") == "cpu"
        assert "cpu" in available()

    @pytest.mark.usefixtures("only_cpu")
    def test_auto_wants_an_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert chosen_provider("auto") is None
        both = ["OpenVINOExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
        monkeypatch.setattr(providers, "installed_providers", lambda: both)
        assert chosen_provider("auto") == "cuda"

    def test_an_unknown_one(self) -> None:
        with pytest.raises(OptionError, match=r"unknown provider 'gpu'; known are none, auto, cpu, cuda, tensorrt, "):
            chosen_provider("gpu")

    @pytest.mark.usefixtures("only_cpu")
    def test_one_that_is_not_installed(self) -> None:
        with pytest.raises(OptionError) as refused:
            chosen_provider("cuda")
        assert str(refused.value) == (
            "provider 'cuda' is not part of the installed ONNX Runtime (it has cpu); install the build for it, "
            "or leave --provider out: the emulator needs none"
        )


class TestTargets:
    def test_any_is_what_the_schema_allows(self) -> None:
        assert target_kernels("any") is None

    @pytest.mark.usefixtures("only_cpu")
    def test_one_nothing_is_known_about(self) -> None:
        with pytest.raises(OptionError) as refused:
            target_kernels("cann")
        assert str(refused.value) == (
            "nothing is known about the kernels of target 'cann' here; known are any, cpu "
            "(the providers of the installed ONNX Runtime)"
        )

    def test_the_cpu_has_no_fp16_product(self) -> None:
        kernels = target_kernels("cpu")
        assert kernels is not None
        assert kernels.runs("", "MatMul", 13, {"T": "tensor(float)"})
        assert not kernels.runs("", "MatMul", 13, {"T": "tensor(float16)"})
        assert not kernels.runs("", "Nothing", 1, {})

    def test_a_target_keeps_what_it_has_no_kernel_for(self) -> None:
        given = tiny("mlp")
        report = convert(given.model(), given.feeds(np.random.default_rng(0)), target="cpu").report
        assert {d.format for d in report.decisions if d.op_type in ("MatMul", "Gemm")} == {"fp32"}


class TestRuns:
    def test_on_the_cpu(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
        found = run_on(proto.SerializeToString(), "cpu", [{"x": floats([1, 2])}, {"x": floats([3, 4])}])
        assert [o["y"].tolist() for o in found.outputs] == [[-1, -2], [-3, -4]]
        assert found.latency > 0

    def test_beside_the_emulator(self) -> None:
        given = tiny("mlp")
        report = convert(given.model(), given.feeds(np.random.default_rng(0)), provider="cpu").report
        assert report.verdict.status == "pass"
        assert [row.value for row in report.provider_outputs] == ["y"]

    def test_it_needs_validation(self) -> None:
        given = tiny("mlp")
        with pytest.raises(OptionError, match=r"--provider compares with FP32 and needs validation; leave out"):
            convert(given.model(), provider="cpu", validate=False)
