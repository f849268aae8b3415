"""The rounding model laid over a graph: errors add in squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from converter.compare.expected import expected_errors, explained_errors
from converter.compare.run import compare
from converter.conversion import exact_nodes
from converter.formats import FP16
from converter.numerics.expectation import expected_output_rounding
from converter.runtime.formatting import planned_formats
from converter.runtime.interpreter import Interpreter
from tests.models.build import indexed, value
from tests.models.run import context_of, plan_with

U = expected_output_rounding(FP16)


def expected(text: str, *narrow: str, name: str = "y", opset: int = 17) -> float:
    """Expected relative error of a value in units of one rounding."""
    index = indexed(text, opset)
    spec = planned_formats(index, plan_with(index, *narrow))
    return expected_errors(index, spec, exact_nodes(context_of(index)))[value(index, name)] / U


class TestCounts:
    def test_nothing_narrow_no_error(self) -> None:
        assert expected("g (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }") == 0

    def test_a_product_of_two_rounded_operands_rounded_once(self) -> None:
        assert expected("g (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }", "y") == pytest.approx(math.sqrt(3))

    def test_a_sum_takes_the_larger_error(self) -> None:
        text = "g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }"
        assert expected(text, "y") == pytest.approx(math.sqrt(2))

    def test_data_movement_rounds_nothing_itself(self) -> None:
        text = "g (float[2, 2] x) => (float[2, 2] y) { h = MatMul(x, x)  y = Transpose(h) }"
        assert expected(text, "h", "y") == pytest.approx(math.sqrt(3))

    def test_a_chain(self) -> None:
        text = "g (float[2] x) => (float[2] y) <float k = {3}> { a = Mul(x, k)  b = Mul(a, k)  y = Mul(b, k) }"
        # x, then per product the constant and the result: 1 + 3 * 2
        assert expected(text, "a", "b", "y") == pytest.approx(math.sqrt(7))

    def test_through_a_branch_the_worse_one(self) -> None:
        text = """
            g (float[2, 2] x, bool c) => (float[2, 2] y) {
              y = If(c) <then_branch = t () => (float[2, 2] u) { u = MatMul(x, x) },
                         else_branch = e () => (float[2, 2] v) { v = Neg(x) }> }"""
        assert expected(text, "u", "v") == pytest.approx(math.sqrt(3 + 1))  # and the If's own narrow result


def test_a_right_conversion_is_within_a_factor_of_the_expectation(rng: np.random.Generator) -> None:
    """Random matrices: the measured error of a product lies near sqrt(3) roundings."""
    index = indexed("g (float[64, 64] x, float[64, 64] z) => (float[64, 64] y) { y = MatMul(x, z) }")
    feeds = {n: rng.standard_normal((64, 64)).astype(np.float32) for n in "xz"}
    spec = planned_formats(index, plan_with(index, "y"))
    compared = compare(Interpreter(index), spec, [feeds])
    figures = compared.outputs["y"].figures
    assert figures is not None
    assert figures.rel_l2_error == pytest.approx(math.sqrt(3) * U, rel=0.1)


def test_an_amplification_shows_at_the_node_that_makes_it(rng: np.random.Generator) -> None:
    """x - 0.9999 x cancels: the difference is wrong by far more than its inputs explain, what follows is not."""
    index = indexed("""
        g (float[1000] x) => (float[1000] y) <float k = {0.999}> {
          a = Mul(x, k)  gap = Sub(x, a)  y = Sigmoid(gap) }""")
    feeds = {"x": rng.standard_normal(1000).astype(np.float32)}
    spec = planned_formats(index, plan_with(index, "a", "gap", "y"))
    compared = compare(Interpreter(index), spec, [feeds])
    exact = exact_nodes(context_of(index))
    explained = explained_errors(index, spec, exact, compared.accumulated)
    measured = {v: f.rel_l2_error for v, f in compared.accumulated.items()}

    def ratio(name: str) -> float:
        found = measured[value(index, name)]
        assert found is not None
        return found / explained[value(index, name)]

    assert ratio("a") < 3
    assert ratio("gap") > 50
    assert ratio("y") < 3


class TestQuantisers:
    @staticmethod
    def behind(kind: str, *narrow: str) -> float:
        return expected(
            f"""g (float[4, 4] x) => (float[4, 4] y) <float s = {{0.03}}, {kind} z = {{0}}> {{
                h = MatMul(x, x)  q = QuantizeLinear(h, s, z)  y = DequantizeLinear(q, s, z) }}""",
            *narrow,
            opset=21,
        )

    def test_small_errors_move_a_few_values_by_a_whole_level(self) -> None:
        arriving = math.sqrt(3) * U
        assert self.behind("int8", "h") * U == pytest.approx(math.sqrt(arriving * math.sqrt(2 / math.pi) / 32))

    def test_nothing_narrow_no_error(self) -> None:
        assert self.behind("int8") == 0

    def test_many_levels_pass_errors_on(self) -> None:
        assert self.behind("int16", "h") < self.behind("int8", "h") / 8

    def test_integers_that_are_not_quantised_carry_nothing(self) -> None:
        text = """g (float[2, 2] x) => (float[2] y) {
            h = MatMul(x, x)  s = Shape(h)  y = Cast <to = 1> (s) }"""
        assert expected(text, "h", name="y") == 0
