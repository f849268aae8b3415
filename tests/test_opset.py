"""One decision per model: whether and how far the operator set is raised for BF16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter import convert
from converter.types import Report
from tests.models.build import model
from tests.models.run import floats

CONV = "g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { [conv] y = Conv(x, w) }"
WEIGHTS = {"w": np.full((1, 1, 2, 2), 0.5, np.float32)}
X = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)


def converted(text: str, opset: int, feeds: dict[str, Any] | None, weights: dict[str, Any] | None = None,
              **options: Any) -> Report:  # fmt: skip
    return convert(model(text, opset, weights), feeds, **({"to": "bf16"} | options)).report


def told(report: Report, kind: str) -> list[str]:
    return [f.message for f in report.findings if f.kind == kind]


class TestRaised:
    def test_to_the_smallest_that_makes_the_nodes_legal(self) -> None:
        report = converted(CONV, 17, {"x": X}, WEIGHTS)
        assert told(report, "raised-opset") == [
            "opset 17 was raised to 22, the smallest at which 1 nodes may be BF16; "
            "FP32 outputs changed by at most 1e-06 (relative L2)"
        ]
        assert [d.format for d in report.decisions] == ["bf16"]
        assert report.verdict.status == "pass"

    def test_for_the_casts_around_a_contributed_operator(self) -> None:
        text = "g (float[2,2] x) => (float[2,2] y) { y = com.microsoft.FusedMatMul(x, x) }"
        done = convert(model(text, 11, domains={"com.microsoft": 1}), {"x": floats([[1, 2], [3, 4]])}, to="bf16")
        assert told(done.report, "raised-opset")[0].startswith("opset 11 was raised to 13, the smallest at which 1 ")
        assert [d.format for d in done.report.decisions] == ["bf16"]

    def test_without_samples_when_every_text_stays_the_same(self) -> None:
        report = converted(CONV, 17, None, WEIGHTS, validate=False)
        assert told(report, "raised-opset")
        assert [d.format for d in report.decisions] == ["bf16"]

    def test_nodes_that_needed_adapting(self) -> None:
        report = converted(
            "g (float[1, 4] x) => (float[4] y) { h = MatMul(x, w)  y = Squeeze<axes = [0]>(h) }", 11,
            {"x": floats([[1, 2, 3, 4]])}, {"w": np.eye(4, dtype=np.float32)},
        )  # fmt: skip
        assert told(report, "raised-opset")[0].startswith("opset 11 was raised to 13, the smallest at which ")


class TestKept:
    def test_fp16_asks_for_nothing_newer(self) -> None:
        report = converted(CONV, 17, {"x": X}, WEIGHTS, to="fp16")
        assert not told(report, "raised-opset")
        assert not told(report, "opset-kept")

    def test_nothing_wanted_nothing_raised(self) -> None:
        report = converted(
            "g (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }", 13, {"x": np.eye(2, dtype=np.float32)}
        )
        assert not told(report, "raised-opset")

    def test_a_node_that_cannot_be_adapted(self) -> None:
        report = converted(
            """g (float[1, 2] h, float[1, 3, 2] q) => (float[1, 2] y) {
                 y = Scan<num_scan_inputs = 1, body = b (float[2] i, float[2] e) => (float[2] o) { o = Add(i, e) }>(,
                  h, q) }""",
            8, {"h": floats([[1, 2]]), "q": np.ones((1, 3, 2), np.float32)},
        )  # fmt: skip
        (message,) = told(report, "opset-kept")
        assert message.startswith("opset 8 was not raised, so nodes that need more stay FP32 (opset ")
        assert message.endswith(": Scan lost its batch axis with opset 9)")

    def test_adapting_cannot_be_checked_without_samples(self) -> None:
        report = converted(
            "g (float[1, 4] x) => (float[4] y) { h = MatMul(x, w)  y = Squeeze<axes = [0]>(h) }", 11, None,
            {"w": np.eye(4, dtype=np.float32)}, validate=False,
        )  # fmt: skip
        (message,) = told(report, "opset-kept")
        assert "nodes had to be adapted, which cannot be checked without samples" in message

    def test_a_node_without_a_kernel_at_the_new_opset(self) -> None:
        report = converted(
            """g (float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y, float[2] z) {
                 y = Conv(x, w)  z = RandomNormal<shape = [2]>() }""",
            17, {"x": X}, WEIGHTS,
        )  # fmt: skip
        (message,) = told(report, "opset-kept")
        assert "ONNX Runtime has no kernel for node 'RandomNormal#1' (RandomNormal) there" in message
        assert [d.format for d in report.decisions if d.op_type == "Conv"] == ["fp32"]


@pytest.mark.parametrize("version", [13, 17, 22])
def test_the_written_opset_is_the_one_reported(version: int) -> None:
    done = convert(model(CONV, version, WEIGHTS), {"x": X}, to="bf16")
    assert done.model is not None
    assert done.model.opset_imports[""] == 22
