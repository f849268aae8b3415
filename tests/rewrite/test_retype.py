"""Types of values, and attributes that say a type."""

from __future__ import annotations

import pytest

from converter.rewrite.narrow_initializers import NarrowInitializers
from converter.rewrite.retype import Retype
from tests.models.build import drawing, drawn
from tests.rewrite.drawings import apply, draft_of

PASS = Retype()


def test_values_that_are_stored_narrow() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { h = Neg(x)  y = Exp(h) }", "h")
    assert apply(draft, PASS) == drawing("""
        (x: float) => (y: float)
          h: float16 = Neg(x)
          y: float = Exp(h)
    """)


@pytest.mark.parametrize(
    ("node", "before", "after"),
    [
        ("h = Cast<to = 1>(i)", "Cast<to=1>(i)", "Cast<to=10>(i)"),
        ("h = ConstantOfShape(s)", "ConstantOfShape(s)", "ConstantOfShape<value={0}>(s)"),
        ("h = ConstantOfShape<value = float[1] {1.0001}>(s)", "ConstantOfShape<value={1.0001}>(s)",
         "ConstantOfShape<value={1}>(s)"),
    ],
)  # fmt: skip
def test_attributes_that_say_a_type(node: str, before: str, after: str) -> None:
    text = f"g (int64[2] i, int64[1] s, float[2] x) => (float[2] y) {{ {node}  y = Neg(h) }}"
    draft = draft_of(text, "h", "y")
    assert before in drawn(draft.model)
    made = apply(draft, PASS)
    assert f"h: float16 = {after}" in made


def test_only_the_first_output_says_the_type() -> None:
    """LayerNormalization's statistics are of the stash type, whatever the first output is."""
    text = "g (float[2, 4] x) => (float[2, 4] y, float[2, 1] m) <float[4] w = {1, 1, 1, 1}>"
    draft = draft_of(text + " { y, m = LayerNormalization(x, w) }", "y")
    assert "y: float16, m: float = LayerNormalization(x, w)" in apply(draft, NarrowInitializers(), PASS)


def test_the_default_of_an_input() -> None:
    draft = draft_of("g (float[1] x, float[1] w = {1.0001}) => (float[1] y) { y = Mul(x, w) }", "y", narrow_io=True)
    made = apply(draft, PASS, narrow_io=True)
    assert made.startswith("(x: float16, w: float16) => (y: float16)\n  w: float16 = {1}\n")


@pytest.mark.parametrize(
    ("node", "after"),
    [("RandomNormalLike(x)", "RandomNormalLike<dtype=16>(x)"), ("Bernoulli(x)", "Bernoulli<dtype=16>(x)"),
     ("HannWindow(n)", "HannWindow<output_datatype=16>(n)"), ("EyeLike<dtype = 1>(m)", "EyeLike<dtype=16>(m)")],
)  # fmt: skip
def test_nodes_that_are_forced(node: str, after: str) -> None:
    """The table keeps them FP32; a plan may still ask for it (``--policy``)."""
    text = f"g (float[2] x, int64 n, int64[2, 2] m) => (float[N] y) {{ r = {node}  y = Neg(r) }}"
    assert f"r: bfloat16 = {after}" in apply(draft_of(text, "r", "y", to="bf16", opset=22), PASS)


def test_an_operator_without_such_attributes() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { y = Gelu(x) }", "y", opset=20)
    assert "y: float16 = Gelu(x)" in apply(draft, PASS)


def test_nothing_narrow_nothing_changed_and_twice_is_once() -> None:
    draft = draft_of("g (int64[2] i) => (float[2] y) { h = Cast<to = 1>(i)  y = Neg(h) }")
    before = drawn(draft.model)
    assert apply(draft, PASS) == before
    draft = draft_of("g (int64[2] i) => (float[2] y) { h = Cast<to = 1>(i)  y = Neg(h) }", "h", "y")
    assert apply(draft, PASS) == apply(draft, PASS)
