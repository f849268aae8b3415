"""Repair names the true culprit: graphs with one planted fault."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from converter import convert
from tests.models.build import model

RNG = np.random.default_rng(11)


def layers(count: int, planted: dict[int, str]) -> str:
    """Harmless products and activations, with another node in place of some activations."""
    lines, current = [], "x"
    for k in range(count):
        lines.append(f"[product{k}] p{k} = MatMul({current}, w{k})")
        lines.append(planted.get(k, "[act{k}] a{k} = Tanh(p{k})").format(k=k))
        current = f"a{k}"
    lines.append(f"y = Identity({current})")
    return "g (float[8, 16] x) => (float[8, 16] y) <float k = {0.999}> {\n" + "\n".join(lines) + "\n}"


def weights(count: int) -> dict[str, Any]:
    return {f"w{k}": (RNG.standard_normal((16, 16)) / 4).astype(np.float32) for k in range(count)}


CANCEL = "[near{k}] n{k} = Mul(p{k}, k)  [gap{k}] a{k} = Sub(p{k}, n{k})"
FEEDS = {"x": RNG.standard_normal((8, 16)).astype(np.float32)}


@pytest.mark.parametrize("place", [0, 2, 3])
def test_the_nodes_around_a_planted_cancellation_become_fp32(place: int) -> None:
    proto = model(layers(4, {place: CANCEL}), weights=weights(4))
    report = convert(proto, FEEDS).report
    assert report.verdict.status == "pass"
    widened = {node for done in report.repair for node in done.widened}
    assert {f"near{place}", f"gap{place}"} & widened
    others = {f"product{k}" for k in range(4) if k > place}
    assert not others & widened, widened


def test_a_graph_without_a_fault_is_not_repaired() -> None:
    report = convert(model(layers(4, {}), weights=weights(4)), FEEDS).report
    assert report.verdict.status == "pass"
    assert report.repair == ()


def test_every_round_says_what_it_did() -> None:
    report = convert(model(layers(4, {1: CANCEL}), weights=weights(4)), FEEDS).report
    for number, done in enumerate(report.repair, 1):
        assert done.round == number
        assert done.worst_output == "y"
        assert done.error_before is not None
        assert done.error_after is not None
        assert done.reason
        assert done.widened
    assert report.repair[-1].error_after is not None
    assert report.repair[0].error_before is not None
    assert report.repair[-1].error_after < report.repair[0].error_before
    reasons = {d.node: d for d in report.decisions}
    for node in report.repair[0].widened:
        assert reasons[node].format == "fp32"
        assert reasons[node].rule == "repair"


def test_without_repair_it_fails() -> None:
    report = convert(model(layers(4, {1: CANCEL}), weights=weights(4)), FEEDS, repair=False).report
    assert report.verdict.status == "fail"
    assert report.repair == ()


def test_at_most_three_rounds_and_the_best_plan_is_kept() -> None:
    """Nothing but FP32 everywhere keeps a limit of zero."""
    report = convert(model(layers(3, {}), weights=weights(3)), FEEDS, max_rel_l2=0.0).report
    assert len(report.repair) <= 3
    assert report.verdict.status == "pass"
    assert report.summary.narrow_nodes == 0 or report.outputs[0].figures.equal  # type: ignore[union-attr]


def test_scores_become_right_enough_for_their_index_and_no_more() -> None:
    """BF16 flips the largest of close scores; the dearest roundings are widened, here those of the residual stream."""
    rng = np.random.default_rng(0)
    lines, current = [], "x"
    for k in range(6):
        lines.append(f"[up{k}] u{k} = MatMul({current}, w{k})  [act{k}] t{k} = Tanh(u{k})")
        lines.append(f"[small{k}] s{k} = Mul(t{k}, k)  [add{k}] r{k} = Add({current}, s{k})")
        current = f"r{k}"
    lines.append(f"[scores] y = MatMul({current}, head)  [pick] i = ArgMax <axis = 1, keepdims = 0> (y)")
    text = "g (float[512, 16] x) => (float[512, 8] y, int64[512] i) <float k = {0.05}> {\n" + "\n".join(lines) + "\n}"
    given = {f"w{k}": (rng.standard_normal((16, 16)) / 4).astype(np.float32) for k in range(6)}
    given["head"] = rng.standard_normal((16, 8)).astype(np.float32)
    x = rng.standard_normal((512, 16)).astype(np.float32)
    report = convert(model(text, weights=given), {"x": x}, to="bf16").report
    assert report.verdict.status == "pass"
    (done,) = report.repair
    assert set(done.widened) == {*(f"add{k}" for k in range(6)), "scores"}


def test_noise_on_a_mask_at_the_end_of_fp32_warns_of_nothing() -> None:
    text = """g (float[8, 8] x, float[8, 8] m) => (float[8, 8] y, int64[8] i) <float k = {0.999}> {
        b = Add(x, m)  p = Softmax(b)  n = Mul(p, k)  y = Sub(p, n)  i = ArgMax <axis = 1, keepdims = 0> (y) }"""
    mask = np.triu(np.full((8, 8), np.finfo(np.float32).min, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = convert(
            model(text), {"x": RNG.standard_normal((8, 8)).astype(np.float32), "m": mask}, to="bf16"
        ).report
    assert report.verdict.status == "pass"
