"""All passes in their order, and what is tidied up behind them."""

from __future__ import annotations

import pytest

from converter.errors import InternalError
from converter.rewrite import apply as apply_module
from converter.rewrite.apply import PASSES, rewrite
from converter.rewrite.base import Draft, Pass
from tests.models.build import drawing, drawn, indexed
from tests.models.run import clamp, plan_with


def test_a_whole_rewrite() -> None:
    index = indexed("""
        g (float[2] x) => (float[2] y) <float[2] w = {1.0001, 2}> {
          h = Mul(x, w)  e = Exp(h)  k = Constant<value_float = 3.0>()  y = Mul(e, k) }""")
    done = rewrite(index, plan_with(index, "h", "y", clamps=[clamp(index, "h", "output")]), narrow_io=False)
    assert drawn(done.model) == drawing("""
        (x: float) => (y: float)
          w: float16 = {1, 2}
          narrowcast_clamp_min_fp16: float16 = {-65504}
          narrowcast_clamp_max_fp16: float16 = {65504}
          x_fp16: float16 = Cast<to=10>(x)
          h_unclamped: float16 = Mul(x_fp16, w)
          h: float16 = Clip(h_unclamped, narrowcast_clamp_min_fp16, narrowcast_clamp_max_fp16)
          h_fp32: float = Cast<to=1>(h)
          e: float = Exp(h_fp32)
          e_fp16: float16 = Cast<to=10>(e)
          k: float16 = Constant<value={3}>()
          y_fp16: float16 = Mul(e_fp16, k)
          y: float = Cast<to=1>(y_fp16)
    """)
    assert (done.casts, done.clamps, done.constants_changed) == (4, 1, ())


class TestTidying:
    def test_constants_that_lost_their_readers_go(self) -> None:
        """The branch's If no longer reads the wide one, whose only reader became narrow in both bodies."""
        index = indexed("""
            g (float[2] x, bool c) => (float[2] y) {
              k = Constant<value_floats = [1.0, 2.0]>()
              y = If(c) <then_branch = t () => (float[2] u) { u = Mul(x, k) },
                         else_branch = e () => (float[2] v) { v = Add(x, k) }> }""")
        made = drawn(rewrite(index, plan_with(index, "u", "v"), narrow_io=False).model)
        assert made.count("Constant<") == 1
        assert "k: float16 = Constant<value={1, 2}>()" in made

    def test_constants_nobody_read_before_stay(self) -> None:
        index = indexed("g (float[2] x) => (float[2] y) <float[2] idle = {1, 2}> { y = Neg(x) }")
        assert "idle: float = {1, 2}" in drawn(rewrite(index, plan_with(index, "y"), narrow_io=False).model)

    def test_old_ir_versions_are_raised_where_a_lone_initializer_came(self) -> None:
        text = "g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { h = Mul(x, w)  y = Add(h, h) }"
        index = indexed(text, 8)
        index.model.ir_version = 3
        assert rewrite(index, plan_with(index), narrow_io=False).model.ir_version == 3
        index = indexed("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }", 8)
        index.model.ir_version = 3
        assert rewrite(index, plan_with(index, "y"), narrow_io=False).model.ir_version == 4


def test_each_pass_is_followed_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    class Vandal(Pass):
        def apply(self, draft: Draft) -> None:
            draft.model.graph.inputs[0].name = "lost"

    monkeypatch.setattr(apply_module, "PASSES", (*PASSES[:2], Vandal(), *PASSES[2:]))
    index = indexed("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(InternalError) as caught:
        rewrite(index, plan_with(index, "y"), narrow_io=False)
    assert str(caught.value) == (
        "after Vandal: graph inputs are ['lost'] instead of ['x']; this is a bug in narrowcast"
    )


def test_a_pass_checks_its_own_promise() -> None:
    class Liar(Pass):
        def apply(self, draft: Draft) -> None:
            pass

        def ensures(self, draft: Draft) -> None:
            raise self.broken("nothing was done")

    index = indexed("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(InternalError, match=r"^pass Liar broke its promise: nothing was done; this is a bug"):
        Liar().ensures(Draft(index, plan_with(index)))
