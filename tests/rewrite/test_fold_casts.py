"""Casts of the user's that have nothing left to do."""

from __future__ import annotations

from converter.rewrite.fold_casts import FoldCasts
from converter.rewrite.insert_casts import InsertCasts
from converter.rewrite.narrow_initializers import NarrowInitializers
from converter.rewrite.retype import Retype
from tests.models.build import drawing, drawn, model
from tests.rewrite.drawings import apply, draft_of

PASSES = (NarrowInitializers(), Retype(), InsertCasts(), FoldCasts())


def test_a_cast_whose_two_sides_became_one_type() -> None:
    draft = draft_of("g (float16[2] x) => (float[2] y) { h = Cast<to = 1>(x)  y = Neg(h) }", "h", "y")
    assert apply(draft, *PASSES) == drawing("""
        (x: float16) => (y: float)
          y_fp16: float16 = Neg(x)
          y: float = Cast<to=1>(y_fp16)
    """)


def test_one_that_makes_an_output_stays() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { y = Cast<to = 1>(x) }")
    assert apply(draft, FoldCasts()) == "(x: float) => (y: float)\n  y: float = Cast<to=1>(x)\n"


def test_narrowing_and_widening_again_is_no_identity() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { n = Cast<to = 10>(x)  h = Cast<to = 1>(n)  y = Exp(h) }")
    before = drawn(draft.model)
    assert apply(draft, *PASSES) == before


def test_one_in_a_body_and_one_that_bodies_read() -> None:
    draft = draft_of("""
        g (float[2] x, bool c) => (float[2] y) {
          h = Cast<to = 1>(x)
          y = If(c) <then_branch = t () => (float[2] u) { k = Cast<to = 1>(h)  u = Exp(k) },
                     else_branch = e () => (float[2] v) { v = Exp(h) }> }""")
    assert apply(draft, FoldCasts()) == drawing("""
        (x: float, c: bool) => (y: float)
          y: float = If(c)
            then_branch:
            () => (u: float)
              u: float = Exp(x)
            else_branch:
            () => (v: float)
              v: float = Exp(x)
    """)


def test_a_custom_cast_is_not_ours() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { h = Cast<to = 1>(x)  y = Exp(h) }")
    draft.index.nodes[0].domain = "mine"
    before = drawn(draft.model)
    assert apply(draft, FoldCasts()) == before


def test_twice_is_once() -> None:
    draft = draft_of("g (float16[2] x) => (float[2] y) { h = Cast<to = 1>(x)  y = Neg(h) }", "h", "y")
    apply(draft, *PASSES)
    assert apply(draft, FoldCasts()) == drawn(draft.model)


def test_the_given_model_is_not_touched() -> None:
    proto = model("g (float[2] x) => (float[2] y) { h = Cast<to = 1>(x)  y = Exp(h) }")
    assert len(proto.graph.node) == 2
