"""States of Loop and Scan."""

from __future__ import annotations

from converter.policy.rules.loop_carried import loop_carried
from tests.policy.rules.asking import context, refusals

LOOP = """
    g (float[2, 2] x, int64 n) => (float[2, 2] y, float[N, 2, 2] s) {
      [turn] y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2, 2] h)
                                               => (bool d, float[2, 2] z, float[2, 2] r) {
        d = Identity(c)  [product] p = MatMul(h, h)  [sum] z = Add(h, p)  [beside] r = Neg(z)
        [other] q = Neg(x) }> }"""
SCAN = """
    g (float[2] x, float[3, 2] q) => (float[2] y, float[3, 2] s) {
      [walk] y, s = Scan<num_scan_inputs = 1, body = b (float[2] h, float[2] e) => (float[2] o, float[2] r) {
        [scale] k = Mul(e, e)  [sum] o = Add(h, k)  [beside] r = Neg(e) }>(x, q) }"""


def test_elementwise_nodes_on_the_recurrence() -> None:
    found = refusals(loop_carried, context(LOOP))
    assert set(found) == {"sum"}
    assert found["sum"].reason == (
        "lies on the recurrence of state 'h' of Loop 'turn': a rounding would compound over the iterations"
    )


def test_a_scan() -> None:
    found = refusals(loop_carried, context(SCAN))
    assert set(found) == {"sum"}
    assert "state 'h' of Scan 'walk'" in found["sum"].reason


def test_integer_states_do_not_round() -> None:
    given = context("""
        g (int64 n, float[2] x) => (int64 y, float[K, 2] s) <int64 zero = {0}> {
          y, s = Loop(n, , zero) <body = b (int64 i, bool c, int64 h) => (bool d, int64 z, float[2] r) {
            d = Identity(c)  z = Add(h, i)  [free] r = Neg(x) }> }""")
    assert refusals(loop_carried, given) == {}


def test_without_loops() -> None:
    assert refusals(loop_carried, context("g (float[2] x) => (float[2] y) { y = Add(x, x) }")) == {}
