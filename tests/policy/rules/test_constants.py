"""Rule 5, constants out of range."""

from __future__ import annotations

import numpy as np

from converter.policy.decide import decide
from converter.policy.rules.constants import constants
from converter.types import Evidence
from tests.models.run import reason_of, rule_of
from tests.policy.rules.asking import context, refusals


def scaled(value: float | str, to: str = "fp16") -> dict[str, object]:
    text = f"g (float[1] x) => (float[1] y) <float[1] k = {{{value}}}> {{ [scale] y = Mul(x, k) }}"
    return dict(refusals(constants, context(text, to=to)))


class TestBeyond:
    def test_the_reader_stays_fp32(self) -> None:
        text = "g (float[1] x) => (float[1] y) <float[1] k = {70091}> { [scale] y = Div(x, k) }"
        refusal = refusals(constants, context(text))["scale"]
        assert refusal.reason == (
            "constant 'k' holds 70091, FP16 ends at 65504; a clamped constant would change the model"
        )
        assert refusal.evidence == Evidence("k", 70091.0, 65504.0)

    def test_the_maximum_is_in_range(self) -> None:
        assert scaled(65504.0) == {}
        assert "scale" in scaled(65505.0)

    def test_bf16_has_room(self) -> None:
        assert scaled(1e30, "bf16") == {}

    def test_a_weight_with_one_outlier(self) -> None:
        text = "g (float[1, 4] x) => (float[1, 4] y) { [product] y = MatMul(x, w) }"
        weight = np.eye(4, dtype=np.float32)
        assert refusals(constants, context(text, weights={"w": weight})) == {}
        weight[2, 2] = 1e5
        assert "product" in refusals(constants, context(text, weights={"w": weight}))

    def test_an_infinity_is_not_beyond(self) -> None:
        weight = np.array([[0.0, -np.inf]], np.float32)
        text = "g (float[1, 2] x) => (float[1, 2] y) { [mask] y = Add(x, w) }"
        assert refusals(constants, context(text, weights={"w": weight})) == {}


class TestLost:
    def test_a_number_that_would_flush(self) -> None:
        found = scaled(1e-9)
        refusal = found["scale"]
        assert refusal.reason.startswith("constant 'k' (absmax 1e-09) would lose ")  # type: ignore[attr-defined]
        assert "of its norm to underflow in FP16" in refusal.reason  # type: ignore[attr-defined]

    def test_a_subnormal_that_keeps_few_bits(self) -> None:
        assert "scale" in scaled(1.3e-7)

    def test_a_subnormal_that_is_exact(self) -> None:
        assert scaled(2.0**-20) == {}

    def test_zero_is_exact(self) -> None:
        assert scaled(0.0) == {}

    def test_small_weights_among_large_ones_carry_no_weight(self) -> None:
        text = "g (float[1, 4] x) => (float[1, 4] y) { [product] y = MatMul(x, w) }"
        weight = np.eye(4, dtype=np.float32) + np.float32(1e-9)
        assert refusals(constants, context(text, weights={"w": weight})) == {}

    def test_weights_that_are_small_all_over(self) -> None:
        text = "g (float[1, 4] x) => (float[1, 4] y) { [product] y = MatMul(x, w) }"
        weight = np.full((4, 4), 1e-8, np.float32)
        assert "product" in refusals(constants, context(text, weights={"w": weight}))

    def test_bf16_has_fp32s_exponents(self) -> None:
        assert scaled(1e-30, "bf16") == {}


def test_the_decision_names_rule_and_constant() -> None:
    text = "g (float[1] x) => (float[1] y) <float[1] k = {70091}> { [scale] y = Div(x, k) }"
    plan = decide(context(text))
    assert rule_of(plan, "scale") == "constants"
    assert "constant 'k' holds 70091" in reason_of(plan, "scale")
