"""Rule 3, integers and coordinates as floats."""

from __future__ import annotations

import numpy as np

from converter.policy.rules.integers import integers
from converter.types import Evidence
from tests.policy.rules.asking import context, refusals

PHASE = """
    g (int64[3] p) => (float[3] y) <float[1] w = {0.5}> {
      [cast] f = Cast<to = 1>(p)  [scale] h = Mul(f, w)  [phase] s = Sin(h)  [rest] y = Neg(s) }"""


def positions(largest: int) -> dict[str, object]:
    return {"p": np.array([0, 1, largest])}


def test_the_path_from_an_integer_to_a_phase() -> None:
    found = refusals(integers, context(PHASE, positions(4097)))
    assert {"cast", "scale", "phase"} <= set(found)
    assert "rest" not in found
    assert found["cast"].reason == "value 'f' holds integers up to 4097; FP16 is exact up to 2048 only"
    assert found["phase"].reason == (
        "value 'f' holds integers up to 4097; FP16 is exact up to 2048 only "
        "and this path ends in an operator that sees small differences"
    )
    assert found["cast"].evidence == Evidence("f", 4097.0, 2048.0)


def test_exact_integers_are_fine() -> None:
    assert refusals(integers, context(PHASE, positions(2048))) == {}


def test_bf16_is_exact_up_to_256() -> None:
    assert refusals(integers, context(PHASE, positions(256), to="bf16")) == {}
    assert "cast" in refusals(integers, context(PHASE, positions(257), to="bf16"))


def test_a_range_of_floats_counts() -> None:
    text = "g (float a, float b, float d) => (float[N] y) { [range] r = Range(a, b, d)  [phase] y = Cos(r) }"
    feeds = {"a": np.float32(0), "b": np.float32(5000), "d": np.float32(1)}
    found = refusals(integers, context(text, {k: np.array(v) for k, v in feeds.items()}))
    assert "phase" in found


def test_doubles_count_when_they_hold_integers() -> None:
    text = "g (double[2] x) => (float[2] y) { [cast] h = Cast<to = 1>(x)  [phase] y = Sin(h) }"
    assert refusals(integers, context(text, {"x": np.array([1.0, 5000.5])})) == {}
    assert "cast" in refusals(integers, context(text, {"x": np.array([1.0, 5000.0])}))


def test_floats_of_the_users_do_not_count() -> None:
    text = "g (float16[2] x) => (float[2] y) { [cast] h = Cast<to = 1>(x)  [phase] y = Sin(h) }"
    assert refusals(integers, context(text, {"x": np.array([1, 5000], np.float16)}, to="bf16")) == {}


def test_a_product_with_weights_is_no_coordinate_any_more() -> None:
    text = """
        g (int64[1, 8] p) => (float[1, 4] y) {
          [cast] f = Cast<to = 1>(p)  [embed] h = MatMul(f, w)  [phase] y = Sin(h) }"""
    given = context(text, {"p": np.full((1, 8), 5000)}, weights={"w": np.full((8, 4), 0.1, np.float32)})
    found = refusals(integers, given)
    assert "embed" in found  # it reads the integers themselves
    assert "phase" not in found


def test_an_outer_product_of_positions_is_a_coordinate() -> None:
    text = """
        g (int64[4, 1] p) => (float[4, 2] y) {
          [cast] f = Cast<to = 1>(p)  [outer] h = MatMul(f, w)  [phase] y = Sin(h) }"""
    given = context(text, {"p": np.array([[0], [1], [2], [5000]])}, weights={"w": np.array([[1, 0.1]], np.float32)})
    assert {"cast", "outer", "phase"} <= set(refusals(integers, given))


def test_small_results_may_be_narrow() -> None:
    """A difference of large positions is refused; what is computed from its small result is not."""
    text = """
        g (int64[2] p, int64[2] q) => (float[2] y) {
          a = Cast<to = 1>(p)  b = Cast<to = 1>(q)  [gap] d = Sub(a, b)  [scale] y = Mul(d, d) }"""
    found = refusals(integers, context(text, {"p": np.array([5000, 6000]), "q": np.array([4999, 5998])}))
    assert "gap" in found
    assert "scale" not in found


def test_without_samples_nothing_is_known() -> None:
    assert refusals(integers, context(PHASE)) == {}
