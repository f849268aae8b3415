"""Casts where formats meet."""

from __future__ import annotations

from converter.rewrite.insert_casts import InsertCasts
from converter.rewrite.insert_clamps import InsertClamps
from converter.rewrite.narrow_initializers import NarrowInitializers
from converter.rewrite.retype import Retype
from tests.models.build import drawing, drawn
from tests.rewrite.drawings import apply, draft_of

PASSES = (NarrowInitializers(), Retype(), InsertClamps(), InsertCasts())


class TestDrawn:
    def test_a_narrow_node_between_wide_ones(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { a = Exp(x)  h = Neg(a)  y = Exp(h) }", "h")
        assert apply(draft, *PASSES) == drawing("""
            (x: float) => (y: float)
              a: float = Exp(x)
              a_fp16: float16 = Cast<to=10>(a)
              h: float16 = Neg(a_fp16)
              h_fp32: float = Cast<to=1>(h)
              y: float = Exp(h_fp32)
        """)
        assert draft.casts == 2

    def test_inputs_and_outputs_keep_name_and_type(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { y = Neg(x) }", "y")
        assert apply(draft, *PASSES) == drawing("""
            (x: float) => (y: float)
              x_fp16: float16 = Cast<to=10>(x)
              y_fp16: float16 = Neg(x_fp16)
              y: float = Cast<to=1>(y_fp16)
        """)

    def test_narrow_inputs_and_outputs_need_none(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { y = Neg(x) }", "y", narrow_io=True)
        assert apply(draft, *PASSES, narrow_io=True) == drawing("""
            (x: float16) => (y: float16)
              y: float16 = Neg(x)
        """)

    def test_narrow_inputs_and_outputs_of_wide_nodes(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { y = Exp(x) }", narrow_io=True)
        assert apply(draft, *PASSES, narrow_io=True) == drawing("""
            (x: float16) => (y: float16)
              x_fp32: float = Cast<to=1>(x)
              y_fp32: float = Exp(x_fp32)
              y: float16 = Cast<to=10>(y_fp32)
        """)

    def test_one_cast_for_all_readers_and_both_ports_of_one(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { a = Mul(x, x)  b = Neg(x)  y = Add(a, b) }", "a", "b")
        assert apply(draft, *PASSES) == drawing("""
            (x: float) => (y: float)
              x_fp16: float16 = Cast<to=10>(x)
              a: float16 = Mul(x_fp16, x_fp16)
              a_fp32: float = Cast<to=1>(a)
              b: float16 = Neg(x_fp16)
              b_fp32: float = Cast<to=1>(b)
              y: float = Add(a_fp32, b_fp32)
        """)

    def test_an_output_that_is_read_inside_too(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] h, float[2] y) { h = Neg(x)  y = Abs(h) }", "h", "y")
        assert apply(draft, *PASSES) == drawing("""
            (x: float) => (h: float, y: float)
              x_fp16: float16 = Cast<to=10>(x)
              h_fp16: float16 = Neg(x_fp16)
              h: float = Cast<to=1>(h_fp16)
              y_fp16: float16 = Abs(h_fp16)
              y: float = Cast<to=1>(y_fp16)
        """)

    def test_one_value_twice_among_the_outputs(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }", "y")
        assert apply(draft, *PASSES).endswith("  y_fp16: float16 = Neg(x_fp16)\n  y: float = Cast<to=1>(y_fp16)\n")

    def test_an_input_that_is_an_output(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] x, float[2] y) { y = Neg(x) }", "y")
        assert apply(draft, *PASSES).startswith(
            "(x: float) => (x: float, y: float)\n  x_fp16: float16 = Cast<to=10>(x)\n"
        )


class TestBodies:
    BRANCHES = """
        g (float[2] x, bool c) => (float[2] y) {{
          h = Neg(x){more}
          y = If(c) <then_branch = t () => (float[2] u) {{ u = Abs(h) }},
                     else_branch = e () => (float[2] v) {{ v = Exp(h) }}> }}"""

    def test_a_cast_stands_in_the_body_that_needs_it(self) -> None:
        draft = draft_of(self.BRANCHES.format(more=""), "u")
        assert apply(draft, *PASSES) == drawing("""
            (x: float, c: bool) => (y: float)
              h: float = Neg(x)
              y: float = If(c)
                then_branch:
                () => (u_fp32: float)
                  h_fp16: float16 = Cast<to=10>(h)
                  u: float16 = Abs(h_fp16)
                  u_fp32: float = Cast<to=1>(u)
                else_branch:
                () => (v: float)
                  v: float = Exp(h)
        """)

    def test_a_cast_outside_is_shared_by_bodies(self) -> None:
        text = self.BRANCHES.replace("float[2] y)", "float[2] y, float[2] k)", 1).format(more="  k = Abs(h)")
        assert apply(draft_of(text, "u", "k"), *PASSES) == drawing("""
            (x: float, c: bool) => (y: float, k: float)
              h: float = Neg(x)
              h_fp16: float16 = Cast<to=10>(h)
              k_fp16: float16 = Abs(h_fp16)
              k: float = Cast<to=1>(k_fp16)
              y: float = If(c)
                then_branch:
                () => (u_fp32: float)
                  u: float16 = Abs(h_fp16)
                  u_fp32: float = Cast<to=1>(u)
                else_branch:
                () => (v: float)
                  v: float = Exp(h)
        """)

    def test_branches_that_are_both_narrow_make_a_narrow_if(self) -> None:
        text = self.BRANCHES.replace("Exp(h)", "Neg(h)").format(more="")
        assert apply(draft_of(text, "h", "u", "v"), *PASSES) == drawing("""
            (x: float, c: bool) => (y: float)
              x_fp16: float16 = Cast<to=10>(x)
              h: float16 = Neg(x_fp16)
              y_fp16: float16 = If(c)
                then_branch:
                () => (u: float16)
                  u: float16 = Abs(h)
                else_branch:
                () => (v: float16)
                  v: float16 = Neg(h)
              y: float = Cast<to=1>(y_fp16)
        """)

    def test_states_of_a_loop_stay_wide_and_its_stacked_outputs_may_be_narrow(self) -> None:
        text = """
            g (float[2] x, int64 n) => (float[2] y, float[N, 2] s) {
              y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] z, float[2] r) {
                d = Identity(c)  r = Neg(h)  z = Abs(r) }> }"""
        assert apply(draft_of(text, "r", "z"), *PASSES) == drawing("""
            (x: float, n: int64) => (y: float, s: float)
              y: float, s_fp16: float16 = Loop(n, , x)
                body:
                (i: int64, c: bool, h: float) => (d: bool, z_fp32: float, r: float16)
                  h_fp16: float16 = Cast<to=10>(h)
                  d: bool = Identity(c)
                  r: float16 = Neg(h_fp16)
                  z: float16 = Abs(r)
                  z_fp32: float = Cast<to=1>(z)
              s: float = Cast<to=1>(s_fp16)
        """)

    def test_a_scanned_narrow_sequence_enters_narrow(self) -> None:
        text = """
            g (float[3, 2] x, float[2] h) => (float[2] y) {
              q = Neg(x)
              y = Scan<num_scan_inputs = 1, body = b (float[2] a, float[2] e) => (float[2] o) {
                f = Abs(e)  o = Add(a, f) }>(h, q) }"""
        made = apply(draft_of(text, "q", "f"), *PASSES)
        assert "(a: float, e: float16) => (o: float)" in made
        assert "f: float16 = Abs(e)" in made


class TestClamps:
    def test_a_clip_in_front_of_a_cast(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { y = Neg(x) }", "y", clamps=[("x", "cast")])
        assert apply(draft, *PASSES) == drawing("""
            (x: float) => (y: float)
              narrowcast_clamp_min_fp32: float = {-65504}
              narrowcast_clamp_max_fp32: float = {65504}
              x_clamped: float = Clip(x, narrowcast_clamp_min_fp32, narrowcast_clamp_max_fp32)
              x_fp16: float16 = Cast<to=10>(x_clamped)
              y_fp16: float16 = Neg(x_fp16)
              y: float = Cast<to=1>(y_fp16)
        """)
        assert (draft.casts, draft.clamps) == (2, 1)

    def test_none_in_front_of_a_cast_to_fp32(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { h = Neg(x)  y = Exp(h) }", "h", clamps=[("h", "cast")])
        assert "Clip" not in apply(draft, *PASSES)


class TestProvenance:
    def test_every_new_node_says_which_value_asked_for_it(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { y = Neg(x) }", "y", clamps=[("x", "cast")])
        apply(draft, *PASSES)
        told = {n.op_type: dict(n.metadata_props) for n in draft.model.graph if n.op_type != "Neg"}
        assert told["Clip"] == {"narrowcast.rule": "overflow", "narrowcast.value": "x", "narrowcast.zone": "beyond",
                                "narrowcast.absmax": "100000"}  # fmt: skip
        assert told["Cast"] == {"narrowcast.rule": "cast", "narrowcast.value": "y"}

    def test_node_names_are_unique(self) -> None:
        draft = draft_of("g (float[2] x) => (float[2] y) { [x_to_fp16] h = Neg(x)  y = Abs(h) }", "h", "y")
        apply(draft, *PASSES)
        names = [n.name for n in draft.model.graph if n.name]
        assert len(names) == len(set(names))
        assert "x_to_fp16_2" in names


def test_nothing_narrow_nothing_changed() -> None:
    draft = draft_of("g (float[2] x) => (float[2] y) { h = Neg(x)  y = Exp(h) }")
    before = drawn(draft.model)
    assert apply(draft, *PASSES) == before
    assert draft.casts == 0
