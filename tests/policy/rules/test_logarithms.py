"""Arguments of logarithms."""

from __future__ import annotations

import numpy as np

from converter.policy.rules.logarithms import logarithms
from tests.policy.rules.asking import context, refusals

SOFTPLUS = """
    g (float[4] x) => (float[4] y) <float one = {1}> {
      [grow] e = Exp(x)  [add] a = Add(e, one)  [log] l = Log(a)  [after] y = Neg(l) }"""


def test_what_makes_the_argument() -> None:
    given = context(SOFTPLUS)
    found = refusals(logarithms, given, *given.index.labels)
    assert set(found) == {"add"}
    assert found["add"].reason == (
        "makes the argument of 'log' (Log), which turns a relative rounding into an absolute error"
    )


def test_a_logit() -> None:
    given = context("""
        g (float[4] x) => (float[4] y) <float one = {1}> {
          [rest] p = Sigmoid(x)  [gap] q = Sub(one, p)  [odds] o = Div(p, q)  [log] y = Log(o) }""")
    assert set(refusals(logarithms, given, *given.index.labels)) == {"rest", "gap", "odds"}


def test_a_product_ends_the_chain() -> None:
    given = context("g (float[2, 2] x) => (float[2, 2] y) { [product] p = MatMul(x, x)  [log] y = Log(p) }")
    assert refusals(logarithms, given, *given.index.labels) == {}


def test_no_logarithm_no_refusal() -> None:
    given = context(SOFTPLUS.replace("Log(a)", "Neg(a)"))
    assert refusals(logarithms, given, *given.index.labels) == {}


SMALL_TERM = """
    g (float[4] x) => (float[4] y) <float one = {1}, float k = {0.01}> {
      [scale] s = Mul(x, k)  [add] a = Add(s, one)  [log] l = Log(a)  [after] y = Neg(l) }"""


def test_a_small_term_of_the_sum_ends_the_chain() -> None:
    given = context(SMALL_TERM, {"x": np.array([-2, -1, 1, 2], np.float32)})
    assert set(refusals(logarithms, given, *given.index.labels)) == {"add"}


def test_a_term_that_can_cancel_the_sum_does_not() -> None:
    given = context(SMALL_TERM, {"x": np.array([-100, -1, 1, 2], np.float32)})
    assert set(refusals(logarithms, given, *given.index.labels)) == {"scale", "add"}


def test_what_was_not_seen_is_no_small_term() -> None:
    given = context(SMALL_TERM)
    assert set(refusals(logarithms, given, *given.index.labels)) == {"scale", "add"}
