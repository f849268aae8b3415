"""Rule 8, norms that are written out."""

from __future__ import annotations

import pytest

from converter.policy.rules.norm_patterns import norm_patterns
from tests.policy.rules.asking import context, refusals

LAYER = """
    g (float[2, 4] x) => (float[2, 4] y) <float two = {2}, float eps = {1e-3}, float[4] g = {1, 2, 3, 4},
     float[4] b = {0, 1, 0, 1}> {
      [mean] m = ReduceMean<axes = [1], keepdims = 1>(x)  [centre] c = Sub(x, m)  [square] p = Pow(c, two)
      [variance] v = ReduceMean<axes = [1], keepdims = 1>(p)  [guard] a = Add(v, eps)  [root] r = Sqrt(a)
      [quotient] q = Div(c, r)  [scale] s = Mul(q, g)  [shift] h = Add(s, b)  [after] y = Relu(h) }"""
RMS = """
    g (float[2, 4] x) => (float[2, 4] y) <float eps = {1e-3}, float[4] g = {1, 2, 3, 4}> {
      [square] p = Mul(x, x)  [mean] v = ReduceMean<axes = [1], keepdims = 1>(p)  [guard] a = Add(v, eps)
      [root] r = Sqrt(a)  [inverse] i = Reciprocal(r)  [apply] n = Mul(x, i)  [scale] y = Mul(n, g) }"""


@pytest.mark.parametrize(
    ("text", "members"),
    [(LAYER, {"mean", "centre", "square", "variance", "guard", "root", "quotient", "scale", "shift"}),
     (RMS, {"square", "mean", "guard", "root", "inverse", "apply", "scale"})],
    ids=["layer", "rms"],
)  # fmt: skip
def test_the_whole_norm_stays_together(text: str, members: set[str]) -> None:
    given = context(text)
    found = refusals(norm_patterns, given, *given.index.labels)
    assert set(found) == members
    assert found["square"].reason == (
        f"part of a written-out norm: 'square' squares what '{'variance' if 'variance' in members else 'mean'}' sums, "
        "and an overflow there gives zeros, not NaN"
    )


def test_a_sum_of_squares_without_a_root_is_refused_alone() -> None:
    text = """
        g (float[2, 4] x) => (float[2, 1] y) {
          [square] p = Mul(x, x)  [sum] s = ReduceMean<axes = [1], keepdims = 1>(p)  [rest] y = Neg(s) }"""
    given = context(text)
    assert set(refusals(norm_patterns, given, *given.index.labels)) == {"square", "sum"}


@pytest.mark.parametrize(
    "change",
    [("Mul(x, x)", "Mul(x, g)"), ("Mul(x, x)", "Add(x, x)"), ("ReduceMean<axes = [1], keepdims = 1>(p)", "Neg(p)")],
    ids=["two factors", "no square", "no reduction"],
)
def test_what_is_no_norm(change: tuple[str, str]) -> None:
    given = context(RMS.replace(*change))
    assert refusals(norm_patterns, given, *given.index.labels) == {}


def test_another_power() -> None:
    given = context(LAYER.replace("two = {2}", "two = {3}"))
    assert refusals(norm_patterns, given, *given.index.labels) == {}
