"""Rule 10, the price of casts."""

from __future__ import annotations

import numpy as np

from converter.policy.rules.casts import paying_casts, smaller_side
from tests.policy.rules.asking import context, refusals

SLICED = """
    g (float[100, 4] x) => (float[2, 4] y) <int64[1] s = {0}, int64[1] e = {2}> {
      [grow] h = Exp(x)  [cut] t = Slice(h, s, e)  [product] y = MatMul(t, w) }"""
EXPANDED = """
    g (float[1, 4] x) => (float[50, 4] y) <int64[2] shape = {50, 4}> {
      [grow] h = Exp(x)  [expand] t = Expand(h, shape)  [product] y = MatMul(t, w) }"""
WEIGHTS = {"w": np.eye(4, dtype=np.float32)}


def feeds(rows: int) -> dict[str, object]:
    return {"x": np.full((rows, 4), 0.5, np.float32)}


class TestSmallerSide:
    def test_a_cast_goes_behind_what_makes_a_value_smaller(self) -> None:
        found = refusals(smaller_side, context(SLICED, feeds(100), WEIGHTS), "cut", "product")
        assert set(found) == {"cut"}
        assert found["cut"].reason == "casts behind the data movement around 'cut' move 48 bytes, before it 2,400"

    def test_and_before_what_makes_it_larger(self) -> None:
        assert refusals(smaller_side, context(EXPANDED, feeds(1), WEIGHTS), "expand", "product") == {}

    def test_without_samples_nothing_is_known(self) -> None:
        assert refusals(smaller_side, context(SLICED, weights=WEIGHTS), "cut", "product") == {}


class TestPayingCasts:
    LIGHT = "g (float[100] x) => (float[100] y) { [grow] h = Exp(x)  [sign] i = Neg(h)  [end] y = Exp(i) }"

    def test_arithmetic_that_does_not_pay_for_its_casts(self) -> None:
        given = context(self.LIGHT, {"x": np.ones(100, np.float32)}, optimise="speed")
        found = refusals(paying_casts, given, "sign")
        assert found["sign"].reason == "its casts would move 1,200 bytes and narrow arithmetic save 400"

    def test_only_speed_asks(self) -> None:
        assert refusals(paying_casts, context(self.LIGHT, {"x": np.ones(100, np.float32)}), "sign") == {}

    def test_products_are_worth_a_cast(self) -> None:
        given = context(SLICED, feeds(100), WEIGHTS, optimise="speed")
        assert refusals(paying_casts, given, "product") == {}

    def test_long_runs_pay(self) -> None:
        nodes = "  ".join(f"[n{k}] v{k + 1} = Neg(v{k})" for k in range(8))
        text = f"g (float[100] x) => (float[100] y) {{ v0 = Exp(x)  {nodes}  y = Exp(v8) }}"
        given = context(text, {"x": np.ones(100, np.float32)}, optimise="speed")
        assert refusals(paying_casts, given, *(f"n{k}" for k in range(8))) == {}
