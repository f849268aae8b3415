"""Rule 2, values and divisors below what the format holds."""

from __future__ import annotations

import numpy as np

from converter.policy.rules.underflow import underflow
from tests.models.run import floats
from tests.policy.rules.asking import context, refusals

NEG = "g (float[4] x) => (float[4] y) { [sign] y = Neg(x) }"
DIV = "g (float[2] x, float[2] z) => (float[2] y) { [quotient] y = Div(x, z) }"


class TestValues:
    def test_that_would_become_zero(self) -> None:
        refusal = refusals(underflow, context(NEG, {"x": floats([1e-9, 2e-9, 1e-9, 3e-9])}))["sign"]
        assert refusal.reason.startswith("rounding value 'y' (absmax 3e-09) to FP16 would cost a relative error of 1,")
        assert refusal.reason.endswith("100.0% of its elements would become zero")
        assert refusal.evidence is not None
        assert refusal.evidence.number > refusal.evidence.limit

    def test_small_ones_beside_large_ones(self) -> None:
        assert refusals(underflow, context(NEG, {"x": floats([1, 1e-9, 1e-9, 1e-9])})) == {}

    def test_subnormals_that_carry_the_weight(self) -> None:
        assert "sign" in refusals(underflow, context(NEG, {"x": floats([1e-6, 2e-6, 3e-6, 4e-6])}))

    def test_just_above_the_smallest_normal(self) -> None:
        assert refusals(underflow, context(NEG, {"x": floats([1e-4, 2e-4, 3e-4, 4e-4])})) == {}

    def test_zeros_alone(self) -> None:
        assert refusals(underflow, context(NEG, {"x": floats([0, 0, 0, 0])})) == {}

    def test_bf16_has_fp32s_exponents(self) -> None:
        assert refusals(underflow, context(NEG, {"x": floats([1e-30] * 4)}, to="bf16")) == {}


class TestDivisors:
    def test_that_go_below_the_smallest_normal(self) -> None:
        refusal = refusals(underflow, context(DIV, {"x": floats([1, 1]), "z": floats([1, 1e-6])}))["quotient"]
        assert refusal.reason == (
            "divisor 'z' goes down to 1e-06, below FP16's smallest normal 6.1e-05: "
            "it would lose its digits or become zero"
        )

    def test_in_range(self) -> None:
        assert refusals(underflow, context(DIV, {"x": floats([1, 1]), "z": floats([1, 1e-4])})) == {}

    def test_zeros_are_what_they_are(self) -> None:
        with np.errstate(all="ignore"):
            assert refusals(underflow, context(DIV, {"x": floats([1, 1]), "z": floats([1, 0])})) == {}
