"""Constants in the formats their readers want."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from converter.errors import InternalError
from converter.formats import BF16, FP16
from converter.rewrite.narrow_initializers import NarrowInitializers, NarrowTensor, to_narrow
from tests.models.build import drawing, drawn
from tests.rewrite.drawings import apply, draft_of

PASS = NarrowInitializers()


class TestDrawn:
    def test_all_readers_narrow(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) <float[2] w = {1.0001, 3}> { y = Mul(x, w) }", "y")
        assert apply(draft, PASS) == drawing("""
            (x: float) => (y: float)
              w: float16 = {1, 3}
              y: float = Mul(x, w)
        """)
        assert draft.changed == []

    def test_a_wide_reader_keeps_what_it_had(self) -> None:
        draft = draft_of(
            "g (float[2] x) => (float[2] y) <float[2] w = {1.0001, 3}> { h = Mul(x, w)  e = Exp(w)  y = Add(h, e) }",
            "h",
        )
        assert apply(draft, PASS) == drawing("""
            (x: float) => (y: float)
              w: float = {1.0001, 3}
              w_fp16: float16 = {1, 3}
              h: float = Mul(x, w_fp16)
              e: float = Exp(w)
              y: float = Add(h, e)
        """)

    def test_a_constant_node_becomes_another_or_gets_a_twin(self) -> None:
        text = """
            g (float[2] x) => (float[2] y) {
              k = Constant<value_float = 1.0001>()  c = Constant<value_floats = [2.0, 3.0]>()
              h = Mul(x, k)  i = Mul(h, c)  e = Exp(c)  y = Add(i, e) }"""
        assert apply(draft_of(text, "h", "i"), PASS) == drawing("""
            (x: float) => (y: float)
              k: float16 = Constant<value={1}>()
              c: float = Constant<value_floats=(2.0, 3.0)>()
              c_fp16: float16 = Constant<value={2, 3}>()
              h: float = Mul(x, k)
              i: float = Mul(h, c_fp16)
              e: float = Exp(c)
              y: float = Add(i, e)
        """)

    def test_a_constant_that_bodies_read(self) -> None:
        text = """
            g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
              y = If(c) <then_branch = t () => (float[2] u) { u = Mul(x, w) },
                         else_branch = e () => (float[2] v) <float[2] k = {3, 4}> { e = Exp(w)  v = Mul(e, k) }> }"""
        assert apply(draft_of(text, "u", "v"), PASS) == drawing("""
            (x: float, c: bool) => (y: float)
              w: float = {1, 2}
              w_fp16: float16 = {1, 2}
              y: float = If(c)
                then_branch:
                () => (u: float)
                  u: float = Mul(x, w_fp16)
                else_branch:
                () => (v: float)
                  k: float16 = {3, 4}
                  e: float = Exp(w)
                  v: float = Mul(e, k)
        """)

    def test_a_constant_that_is_an_output(self) -> None:
        text = "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Mul(x, w) }"
        assert "w: float = {1, 2}" in apply(draft_of(text, "y"), PASS)
        narrow = apply(draft_of(text, "y", narrow_io=True), PASS)
        assert "(x: float) => (y: float, w: float16)" in narrow

    def test_a_limited_sentinel_is_named(self) -> None:
        draft = draft_of(
            "g (float[2] x) => (float[2] y) <float[2] m = {0, -1e9}> { y = Add(x, m) }", "y", saturated={"m": 3e4}
        )
        assert "m: float16 = {0, -30000}" in apply(draft, PASS)
        (change,) = draft.changed
        assert (change.value, change.elements, change.before, change.after) == ("m", 1, -1e9, -3e4)
        assert change.reason == "a sentinel that means 'masked': limited so that adding a score stays finite in FP16"

    def test_names_do_not_collide(self) -> None:
        text = """
            g (float[2] x, float[2] w_fp16) => (float[2] y) <float[2] w = {1, 2}> {
              h = Mul(x, w)  e = Exp(w)  i = Add(h, w_fp16)  y = Add(i, e) }"""
        assert "w_fp16_2: float16 = {1, 2}" in apply(draft_of(text, "h"), PASS)


class TestNothing:
    def test_without_narrow_readers(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
        before = drawn(draft.model)
        assert apply(draft, PASS) == before

    def test_integers_and_narrow_constants_are_left_alone(self) -> None:
        text = "g (float[2] x) => (float[2] y) <int64[1] s = {2}, float16[1] k = {15360}>"
        draft = draft_of(text + " { h = Reshape(x, s)  y = Neg(h) }", "h", "y")
        before = drawn(draft.model)
        assert apply(draft, PASS) == before

    def test_twice_is_once(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }", "y")
        assert apply(draft, PASS) == apply(draft, PASS)


def test_a_limit_that_limits_nothing_is_a_bug() -> None:
    draft = draft_of(
        "g (float[2] x) => (float[2] y) <float[2] m = {0, 1}> { y = Add(x, m) }", "y", saturated={"m": 3e4}
    )
    with pytest.raises(InternalError) as caught:
        apply(draft, PASS)
    assert str(caught.value) == ("constant 'm' is limited to 30000.0 but holds nothing beyond; a bug in narrowcast")


class TestTensors:
    def test_values_are_made_when_asked_for(self) -> None:
        source = ir.tensor(np.array([1.0001, 1e9, -1e9, np.inf], np.float32), name="w")
        tensor = NarrowTensor(source, FP16, "n", 3e4)
        assert (tensor.name, tensor.dtype, tensor.nbytes) == ("n", ir.DataType.FLOAT16, 8)
        np.testing.assert_array_equal(tensor.numpy(), np.array([1, 3e4, -3e4, 3e4], np.float16))

    def test_out_of_range_becomes_infinite_without_a_warning(self) -> None:
        np.testing.assert_array_equal(to_narrow(np.float32([1e9]), FP16, None), np.array([np.inf], np.float16))

    def test_rank_zero_and_empty(self) -> None:
        assert to_narrow(np.array(2.5, np.float32), BF16, 1.0).shape == ()
        assert to_narrow(np.zeros((0, 3), np.float32), BF16, None).dtype == ml_dtypes.bfloat16
