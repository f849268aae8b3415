"""Rule 1, visible overflow."""

from __future__ import annotations

import numpy as np

from converter.policy.rules.overflow import overflow
from converter.types import Evidence
from tests.models.run import floats
from tests.policy.rules.asking import context, refusals

TEXT = "g (float[2] x) => (float[2] y) { [square] h = Mul(x, x)  [sign] y = Neg(h) }"


def test_without_clamps_every_node_around_the_value_is_refused() -> None:
    found = refusals(overflow, context(TEXT, {"x": floats([300, 1])}, overflow="widen"))
    assert list(found) == ["square", "sign"]
    assert found["square"].reason == "value 'h' reaches 90000, FP16 ends at 65504, and clamps are off"
    assert found["square"].evidence == Evidence("h", 90000.0, 65504.0)


def test_with_clamps_nothing_is_refused() -> None:
    assert refusals(overflow, context(TEXT, {"x": floats([300, 1])})) == {}


def test_a_clamp_cannot_stand_where_a_true_infinity_was() -> None:
    text = "g (float[2] x) => (float[2] y) { [sign] y = Neg(x) }"
    found = refusals(overflow, context(text, {"x": floats([1e5, np.inf])}))
    assert found["sign"].reason == (
        "value 'y' reaches 100000, FP16 ends at 65504, and also holds true infinities, which a clamp would destroy"
    )


def test_an_infinity_alone_is_no_overflow() -> None:
    text = "g (float[2] x) => (float[2] y) { [sign] y = Neg(x) }"
    assert refusals(overflow, context(text, {"x": floats([1, np.inf])}, overflow="widen")) == {}


def test_the_maximum_itself_is_in_range() -> None:
    text = "g (float[1] x) => (float[1] y) { [sign] y = Neg(x) }"
    assert refusals(overflow, context(text, {"x": floats([65504])}, overflow="widen")) == {}
    assert "sign" in refusals(overflow, context(text, {"x": floats([65504.004])}, overflow="widen"))


def test_bf16_has_room() -> None:
    assert refusals(overflow, context(TEXT, {"x": floats([1e18, 1])}, overflow="widen", to="bf16")) == {}


def test_without_samples_nothing_is_known() -> None:
    assert refusals(overflow, context(TEXT, overflow="widen")) == {}


def test_constants_have_a_rule_of_their_own() -> None:
    text = "g (float[1] x) => (float[1] y) <float[1] k = {1e6}> { [scale] y = Div(x, k) }"
    assert refusals(overflow, context(text, {"x": floats([1])}, overflow="widen")) == {}
