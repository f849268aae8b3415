"""Measured amplification: graphs whose gains are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from converter.compare.perturbation import PerturbationTap
from converter.compare.sensitivity import FLIP_WEIGHT, Sensitivity
from converter.formats import FP16
from converter.graph import ModelIndex
from converter.numerics.expectation import expected_output_rounding
from converter.runtime.formatting import declared_formats
from converter.runtime.interpreter import Interpreter
from tests.models.build import indexed, node, value
from tests.models.run import floats
from tests.models.tiny import TINY, Tiny

U = expected_output_rounding(FP16)
RNG = np.random.default_rng(5)
NORMAL = RNG.standard_normal(4000).astype(np.float32)


def measured(text: str, feeds: Mapping[str, Any], limit: float = 1.0, **more: Any) -> tuple[ModelIndex, Sensitivity]:
    index = indexed(text, **more)
    tap = PerturbationTap(index, FP16, {})
    Interpreter(index).run(feeds, [declared_formats(index)], [tap])
    found = tap.result()
    found.weigh({index.id_of(v): limit for v in index.model.graph.outputs})
    return index, found


def gain(text: str, name: str, feeds: Mapping[str, Any]) -> float:
    """Gain (not squared) from a relative error of a value to the output."""
    index, found = measured(text, feeds)
    return math.sqrt(found.weights.get(value(index, name), 0.0))


class TestGains:
    """Of a value inside: rounding is measured where a node makes a value."""

    def test_rounding_is_one_rounding(self) -> None:
        index, found = measured("g (float[4000] x) => (float[4000] y) { h = Neg(x)  y = Abs(h) }", {"x": NORMAL})
        assert math.sqrt(found.rounding[value(index, "h")]) == pytest.approx(U, rel=0.1)

    def test_a_linear_chain_passes_on(self) -> None:
        text = (
            "g (float[4000] x) => (float[4000] y) <float k = {3}> { h = Neg(x)  a = Mul(h, k)  b = Neg(a)  y = Abs(b) }"
        )
        for name in ("h", "a", "b"):
            assert gain(text, name, {"x": NORMAL}) == pytest.approx(1.0, rel=0.05)

    def test_a_square_doubles(self) -> None:
        text = "g (float[4000] x) => (float[4000] y) <float two = {2}> { h = Neg(x)  y = Pow(h, two) }"
        assert gain(text, "h", {"x": NORMAL + 5}) == pytest.approx(2.0, rel=0.1)

    def test_cancellation(self) -> None:
        """x - 0.99 x: an error of the product is a hundred times as large in the difference."""
        text = "g (float[4000] x) => (float[4000] y) <float k = {0.99}> { a = Mul(x, k)  y = Sub(x, a) }"
        assert gain(text, "a", {"x": NORMAL}) == pytest.approx(99, rel=0.1)

    def test_an_exponential(self) -> None:
        """A relative error of 10 is an absolute one of the exponent: ten times as large."""
        feeds = {"x": np.full(4000, 9.37, np.float32) + np.float32(0.1) * NORMAL}
        text = "g (float[4000] x) => (float[4000] y) { h = Abs(x)  y = Exp(h) }"
        assert gain(text, "h", feeds) == pytest.approx(9.4, rel=0.2)

    def test_what_is_absorbed(self) -> None:
        """Beyond 9 a hyperbolic tangent is one, whatever happens to its argument."""
        feeds = {"x": np.full(4000, 30.0, np.float32) + NORMAL}
        assert gain("g (float[4000] x) => (float[4000] y) { h = Abs(x)  y = Tanh(h) }", "h", feeds) < 1e-3

    def test_an_error_that_all_readers_see_cancels(self) -> None:
        """x - x is zero whatever x is; x - 0.5 x is half of it, with the very error of x."""
        text = "g (float[4000] x) => (float[4000] y) <float k = {0.5}> { h = Neg(x)  a = Mul(h, k)  y = Sub(h, a) }"
        assert gain(text, "h", {"x": NORMAL}) == pytest.approx(1.0, rel=0.1)

    def test_limits_scale_the_weights(self) -> None:
        text = "g (float[4000] x) => (float[4000] y) { h = Neg(x)  y = Abs(h) }"
        index, found = measured(text, {"x": NORMAL}, limit=1e-2)
        assert math.sqrt(found.weights[value(index, "h")]) == pytest.approx(100, rel=0.05)

    def test_outputs_that_are_no_floats(self) -> None:
        text = "g (float[4000] x) => (int64[4000] y) { h = Neg(x)  f = Floor(h)  y = Cast<to = 7>(f) }"
        index, found = measured(text, {"x": 1000 * NORMAL})
        assert found.output_weights[value(index, "y")] == FLIP_WEIGHT
        assert found.weights[value(index, "h")] > 0


class TestCosts:
    def test_of_a_constant_operand(self) -> None:
        text = "g (float[40, 100] x) => (float[40, 50] y) { y = MatMul(x, w) }"
        weight = RNG.standard_normal((100, 50)).astype(np.float32)
        index, found = measured(text, {"x": NORMAL.reshape(40, 100)}, weights={"w": weight})
        product = node(index, "y")
        assert math.sqrt(found.cost(product, 1)) == pytest.approx(U, rel=0.1)
        assert math.sqrt(found.cost(product, 0)) == pytest.approx(U, rel=0.2)

    def test_of_storing(self) -> None:
        index, found = measured("g (float[4000] x) => (float[4000] y) { y = Neg(x) }", {"x": NORMAL})
        assert math.sqrt(found.stored_cost(value(index, "y"))) == pytest.approx(U, rel=0.1)

    def test_of_what_the_format_holds_exactly_is_nothing(self) -> None:
        index, found = measured("g (float[4] x) => (float[4] y) { y = Neg(x) }", {"x": floats([1, 2, 3, 0.5])})
        assert found.cost(node(index, "y"), 0) == 0.0


class TestBodies:
    def test_through_a_branch(self) -> None:
        text = """
            g (float[4000] x, bool c) => (float[4000] y) <float k = {0.99}> {
              a = Mul(x, k)
              y = If(c) <then_branch = t () => (float[4000] u) { u = Sub(x, a) },
                         else_branch = e () => (float[4000] v) { v = Abs(a) }> }"""
        assert gain(text, "a", {"x": NORMAL, "c": np.array(True)}) == pytest.approx(99, rel=0.15)

    def test_through_a_carried_state(self) -> None:
        """An error that enters a sum of equal terms is passed on to the end."""
        text = """
            g (float[4000] x, int64 n) => (float[4000] y) {
              y = Loop(n, , x) <body = b (int64 i, bool c, float[4000] h) => (bool d, float[4000] z) {
                d = Identity(c)  z = Neg(h) }> }"""
        assert gain(text, "x", {"x": NORMAL, "n": np.array(3)}) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
def test_every_weight_is_a_number(given: Tiny, rng: np.random.Generator) -> None:
    index = given.index()
    tap = PerturbationTap(index, FP16, {})
    Interpreter(index).run(given.feeds(rng), [declared_formats(index)], [tap])
    found = tap.result()
    found.weigh({index.id_of(v): 1e-3 for v in index.model.graph.outputs})
    for weights in (found.weights, found.spread, found.rounding, found.edges):
        assert all(math.isfinite(w) and w >= 0 for w in weights.values())
