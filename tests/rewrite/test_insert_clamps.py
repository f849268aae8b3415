"""Clips behind narrow nodes."""

from __future__ import annotations

import pytest

from converter.errors import InternalError
from converter.rewrite.insert_casts import InsertCasts
from converter.rewrite.insert_clamps import InsertClamps
from converter.rewrite.narrow_initializers import NarrowInitializers
from converter.rewrite.retype import Retype
from tests.models.build import drawing, drawn
from tests.rewrite.drawings import apply, draft_of

PASSES = (NarrowInitializers(), Retype(), InsertClamps())
TEXT = "g (float[2] x) => (float[2] y) { h = Mul(x, x)  a = Neg(h)  y = Exp(h) }"


def test_the_result_of_the_clip_takes_over_name_and_readers() -> None:
    draft = draft_of(TEXT, "h", "a", clamps=[("h", "output")])
    assert apply(draft, *PASSES) == drawing("""
        (x: float) => (y: float)
          narrowcast_clamp_min_fp16: float16 = {-65504}
          narrowcast_clamp_max_fp16: float16 = {65504}
          h_unclamped: float16 = Mul(x, x)
          h: float16 = Clip(h_unclamped, narrowcast_clamp_min_fp16, narrowcast_clamp_max_fp16)
          a: float16 = Neg(h)
          y: float = Exp(h)
    """)


def test_casts_come_behind_it() -> None:
    draft = draft_of(TEXT, "h", "a", clamps=[("h", "output")])
    made = apply(draft, *PASSES, InsertCasts())
    assert "h_fp32: float = Cast<to=1>(h)" in made
    assert "y: float = Exp(h_fp32)" in made


def test_an_output_keeps_its_name() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { y = Mul(x, x) }", "y", clamps=[("y", "output")])
    made = apply(draft, *PASSES, InsertCasts())
    assert made.startswith("(x: float) => (y: float)\n")
    assert made.endswith(
        "  y_fp16: float16 = Clip(y_unclamped, narrowcast_clamp_min_fp16, narrowcast_clamp_max_fp16)\n"
        "  y: float = Cast<to=1>(y_fp16)\n"
    )


def test_bounds_are_shared_and_stand_in_the_main_graph() -> None:
    text = """
        g (float[2] x, bool c) => (float[2] y) {
          h = Mul(x, x)
          y = If(c) <then_branch = t () => (float[2] u) { u = Mul(h, h) },
                     else_branch = e () => (float[2] v) { v = Mul(h, x) }> }"""
    draft = draft_of(text, "h", "u", "v", clamps=[("h", "output"), ("u", "output"), ("v", "output")])
    made = apply(draft, *PASSES, InsertCasts())
    assert made.count("narrowcast_clamp_max_fp16: float16") == 1
    assert draft.clamps == 3


@pytest.mark.parametrize(
    ("opset", "clip"), [(10, "Clip<min=-65504, max=65504>(h_unclamped)"), (11, "Clip(h_unclamped, ")]
)
def test_bounds_are_attributes_before_opset_11(opset: int, clip: str) -> None:
    draft = draft_of(TEXT, "h", "a", clamps=[("h", "output")], opset=opset)
    assert clip in apply(draft, *PASSES)


def test_a_body_output() -> None:
    text = """
        g (float[2] x, int64 n) => (float[N, 2] y) {
          y = Loop(n, , ) <body = b (int64 i, bool c) => (bool d, float[2] r) { d = Identity(c)  r = Mul(x, x) }> }"""
    made = apply(draft_of(text, "r", clamps=[("r", "output")]), *PASSES)
    assert "(i: int64, c: bool) => (d: bool, r: float16)" in made
    assert "r: float16 = Clip(r_unclamped, " in made


def test_a_value_without_a_producer_is_a_bug() -> None:
    draft = draft_of(TEXT, "h", clamps=[("x", "output")])
    with pytest.raises(InternalError) as caught:
        apply(draft, *PASSES)
    assert str(caught.value) == (
        "pass InsertClamps broke its promise: value 'x' has no producer to put a Clip behind; "
        "this is a bug in narrowcast"
    )


def test_nothing_planned_nothing_changed() -> None:
    draft = draft_of(TEXT, "h")
    before = drawn(draft.model)
    assert apply(draft, InsertClamps()) == before
