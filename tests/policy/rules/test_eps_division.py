"""Rule 2, epsilons that would vanish."""

from __future__ import annotations

from converter.policy.rules.eps_division import eps_division
from tests.policy.rules.asking import context, refusals

ADDED = """
    g (float[2, 4] x) => (float[2, 4] y) <float eps = {{{eps}}}> {{
      [norm] n = ReduceL2<axes = [1], keepdims = 1>(x)  [guard] s = Add(n, eps)  [quotient] q = Div(x, s)
      [rest] y = Neg(q) }}"""
ROOT = """
    g (float[2, 4] x) => (float[2, 4] y) <float eps = {1e-8}> {
      [square] p = Mul(x, x)  [mean] m = ReduceMean<axes = [1], keepdims = 1>(p)  [guard] a = Add(m, eps)
      [root] r = Sqrt(a)  [inverse] i = Reciprocal(r)  [product] y = Mul(x, i) }"""


def test_a_norm_and_the_division_behind_it() -> None:
    found = refusals(eps_division, context(ADDED.format(eps=1e-12)))
    assert {"norm", "guard", "quotient"} <= set(found)
    assert "rest" not in found
    assert found["guard"].reason == (
        "epsilon 'eps' of 1e-12 guards a division here and lies below FP16's smallest normal 6.1e-05: "
        "narrowed, it would protect nothing"
    )


def test_an_inverse_root() -> None:
    """The square belongs to the norm pattern's rule."""
    assert {"mean", "guard", "root", "inverse", "product"} == set(refusals(eps_division, context(ROOT)))


def test_an_epsilon_the_format_holds() -> None:
    assert refusals(eps_division, context(ADDED.format(eps=1e-3))) == {}
    assert refusals(eps_division, context(ADDED.format(eps=1e-12), to="bf16")) == {}


def test_one_that_guards_no_division() -> None:
    text = ADDED.format(eps=1e-12).replace("Div(x, s)", "Mul(x, s)")
    assert refusals(eps_division, context(text)) == {}


def test_the_dividend_is_no_divisor() -> None:
    text = ADDED.format(eps=1e-12).replace("Div(x, s)", "Div(s, x)")
    assert refusals(eps_division, context(text)) == {}


def test_only_nodes_that_are_narrow_are_refused() -> None:
    given = context(ADDED.format(eps=1e-12))
    assert list(refusals(eps_division, given, "guard")) == ["guard"]
