"""Comparing any two models: values paired by name, formats taken from the candidate's own types."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter import convert, validate
from converter.errors import ModelError, OptionError
from tests.models.build import model
from tests.models.run import floats
from tests.models.tiny import TINY, Tiny, tiny

MLP = tiny("mlp")
FEEDS = MLP.feeds(np.random.default_rng(1))


def converted(given: Tiny, feeds: dict[str, Any], **options: Any) -> tuple[onnx.ModelProto, Any]:
    done = convert(given.model(), feeds, **options)
    assert done.model is not None
    return ir.to_proto(done.model), done.report


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
def test_the_figures_are_those_of_the_conversion(given: Tiny, rng: np.random.Generator) -> None:
    feeds = given.feeds(rng)
    candidate, first = converted(given, feeds)
    report = validate(given.model(), candidate, feeds)
    assert report.verdict.status == "pass"
    for ours, theirs in zip(report.outputs, first.outputs, strict=True):
        assert ours.value == theirs.value
        assert ours.mismatches == theirs.mismatches == 0
        if theirs.figures is not None:
            assert ours.figures is not None
            assert ours.figures.rel_l2_error == theirs.figures.rel_l2_error


def test_the_narrow_share_of_the_arithmetic_needs_no_fixed_shapes() -> None:
    given = model(
        "g (float[N, 4] x) => (float[N, 4] y) { y = MatMul(x, w) }", weights={"w": np.eye(4, dtype=np.float32)}
    )
    feeds = {"x": floats([[1, 2, 3, 4]])}
    done = convert(given, feeds)
    assert done.model is not None
    assert validate(given, ir.to_proto(done.model), feeds).summary.narrow_flops_share == 1.0


def test_a_model_equals_itself() -> None:
    report = validate(MLP.model(), MLP.model(), [FEEDS, FEEDS])
    assert report.verdict.status == "pass"
    assert report.batches == 2
    assert report.summary.narrow_nodes == 0
    assert all(row.accumulated is not None and row.accumulated.equal for row in report.layers)


def test_layers_are_paired_by_name() -> None:
    candidate, _ = converted(MLP, FEEDS)
    rows = {row.value: row for row in validate(MLP.model(), candidate, FEEDS).layers}
    assert {"h", "a", "y"} <= set(rows)
    assert rows["h"].accumulated is not None
    assert 0 < (rows["h"].accumulated.rel_l2_error or 0) < 1e-3
    assert rows["h"].format == "fp16"


def test_values_without_a_partner_are_told() -> None:
    candidate, _ = converted(MLP, FEEDS)
    for node in candidate.graph.node:
        for names in (node.input, node.output):
            names[:] = ["hidden" if n == "h" else n for n in names]
    del candidate.graph.value_info[:]
    (told,) = (f for f in validate(MLP.model(), candidate, FEEDS).findings if f.kind == "unpaired")
    assert told.message == "1 values of the reference have no value of that name in the candidate, first 'h'"


def test_a_wrong_candidate_fails_and_its_first_layer_is_named() -> None:
    wrong = MLP.model()
    weight = wrong.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(1.5 * onnx.numpy_helper.to_array(weight), weight.name))
    report = validate(MLP.model(), wrong, FEEDS)
    assert report.verdict.status == "fail"
    assert report.first_abnormal == "h"


def test_a_candidate_that_cannot_run_is_a_verdict() -> None:
    reference = model("g (float[2] x) => (float[N] y) { y = Neg(x) }")
    candidate = model(
        "g (float[2] x) => (float[N] y) <int64[1] three = {3}> { h = Neg(x)  [cut] y = Reshape(h, three) }"
    )
    report = validate(reference, candidate, {"x": floats([1, 2])})
    assert report.verdict.status == "fail"
    assert report.verdict.reasons[0].message.startswith("the candidate fails at node 'cut' in batch 0: ")


class TestLimits:
    def test_the_tolerance_of_the_format_the_candidate_uses(self) -> None:
        candidate, _ = converted(MLP, FEEDS, to="bf16")
        report = validate(MLP.model(), candidate, FEEDS)
        assert (report.request.to, report.verdict.status) == ("bf16", "pass")
        assert report.request.tolerance is not None
        assert report.request.tolerance.name == "bf16-default"

    def test_limits_that_are_asked_for(self) -> None:
        candidate, _ = converted(MLP, FEEDS)
        report = validate(MLP.model(), candidate, FEEDS, max_rel_l2=1e-9)
        assert [r.limit for r in report.verdict.reasons] == ["max_rel_l2"]


class TestRefusals:
    def test_no_samples(self) -> None:
        with pytest.raises(OptionError) as refused:
            validate(MLP.model(), MLP.model(), None)
        assert str(refused.value) == "no sample batch was given; pass --samples FILE.npz"

    @pytest.mark.parametrize(
        ("text", "message"),
        [("g (float[N, 4] z) => (float[N, 3] y) { y = MatMul(z, w) }",
          "the candidate's inputs are ['z'], the reference's ['x']; they must be the same"),
         ("g (float[N, 4] x) => (float[N, 3] z) { z = MatMul(x, w) }",
          "the candidate's outputs are ['z'], the reference's ['y']; they must be the same")],
    )  # fmt: skip
    def test_other_interfaces(self, text: str, message: str) -> None:
        other = model(text, weights={"w": np.ones((4, 3), np.float32)})
        with pytest.raises(ModelError) as refused:
            validate(MLP.model(), other, FEEDS)
        assert str(refused.value) == message

    def test_an_unknown_format(self) -> None:
        with pytest.raises(OptionError, match=r"option to is 'fp8'; it takes fp16 or bf16"):
            validate(MLP.model(), MLP.model(), FEEDS, to="fp8")

    def test_a_reference_that_cannot_run(self) -> None:
        broken = model("g (float[2] x) => (float[N] y) <int64[1] three = {3}> { [cut] y = Reshape(x, three) }")
        with pytest.raises(ModelError, match=r"node 'cut' \(Reshape\) fails in FP32 on this batch"):
            validate(broken, broken, {"x": floats([1, 2])})
