"""Rule 7, residual streams that leave the range."""

from __future__ import annotations

import numpy as np

from converter.policy.rules.residual import residual
from tests.policy.rules.asking import context, refusals

STREAM = """
    g (float[2, 4] x) => (float[2, 4] y) {
      [first] a = MatMul(x, w)  [add1] h = Add(x, a)
      [second] b = MatMul(h, w)  [add2] i = Add(h, b)
      [third] c = MatMul(i, w)  [add3] y = Add(i, c) }"""
WEIGHTS = {"w": np.eye(4, dtype=np.float32) * 3}


def test_the_whole_chain_of_adds_stays_fp32() -> None:
    found = refusals(residual, context(STREAM, {"x": np.full((2, 4), 2000, np.float32)}, WEIGHTS))
    assert set(found) == {"add1", "add2", "add3"}
    assert found["add1"].reason == (
        "belongs to a chain of Adds in which 'y' reaches 128000; FP16 ends at 65504, "
        "and a clamp would change every block behind it"
    )


def test_data_movement_between_them_belongs_to_it() -> None:
    text = STREAM.replace("[second]", "[move] t = Identity(h)  [second]").replace("Add(h, b)", "Add(t, b)")
    found = refusals(residual, context(text, {"x": np.full((2, 4), 2000, np.float32)}, WEIGHTS))
    assert {"add1", "move", "add2", "add3"} == set(found)


def test_a_stream_in_range() -> None:
    assert refusals(residual, context(STREAM, {"x": np.full((2, 4), 10, np.float32)}, WEIGHTS)) == {}


def test_one_add_is_no_stream() -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { [first] a = MatMul(x, w)  [add] y = Add(x, a) }"
    assert refusals(residual, context(text, {"x": np.full((2, 4), 20000, np.float32)}, WEIGHTS)) == {}


def test_biases_are_no_residuals() -> None:
    text = """
        g (float[2, 4] x) => (float[2, 4] y) <float[4] b = {1, 1, 1, 1}> {
          [one] h = Add(x, b)  [two] i = Add(h, b)  [three] y = Add(i, b) }"""
    assert refusals(residual, context(text, {"x": np.full((2, 4), 70000, np.float32)})) == {}


def test_bf16_has_room() -> None:
    assert refusals(residual, context(STREAM, {"x": np.full((2, 4), 1e6, np.float32)}, WEIGHTS, to="bf16")) == {}
