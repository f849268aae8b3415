"""From decisions to formats on every edge."""

from __future__ import annotations

import pytest

from converter.graph import ModelIndex
from converter.types import PrecisionPlan
from tests.models.build import indexed, node, value
from tests.models.run import plan_with


def laid(text: str, *narrow: str, opset: int = 17, **more: bool) -> tuple[ModelIndex, PrecisionPlan]:
    index = indexed(text, opset)
    return index, plan_with(index, *narrow, **more)


def casts(index: ModelIndex, plan: PrecisionPlan) -> list[tuple[str, str, str]]:
    """(value, target, scope) of every cast."""
    return [(index.name_of(c.value_id), c.to, index.scopes[c.scope_id].path) for c in plan.casts]


def stored(index: ModelIndex, plan: PrecisionPlan) -> dict[str, str]:
    return {index.name_of(v): f for v, f in plan.stored.items()}


class TestEdges:
    def test_who_reads_what(self) -> None:
        index, plan = laid("g (float[2] x) => (float[2] y) { a = Exp(x)  h = Neg(a)  y = Exp(h) }", "h")
        assert stored(index, plan) == {"x": "fp32", "a": "fp32", "h": "fp16", "y": "fp32"}
        assert {(index.nodes[n].op_type, k): f for (n, k), f in plan.reads.items() if n} == {
            ("Neg", 0): "fp16", ("Exp", 0): "fp32",
        }  # fmt: skip
        assert plan.leaves == {(0, 0): "fp32"}
        assert casts(index, plan) == [("a", "fp16", ""), ("h", "fp32", "")]

    def test_constants_are_stored_for_their_readers_and_need_no_cast(self) -> None:
        index, plan = laid("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }", "y")
        assert "w" not in stored(index, plan)
        assert plan.reads[0, 1] == "fp16"
        assert [c[0] for c in casts(index, plan)] == ["x", "y"]

    def test_ports_that_take_any_format_read_what_is_stored(self) -> None:
        index, plan = laid("g (float[2] x) => (int64[1] s, float[2] y) { h = Neg(x)  s = Shape(h)  y = Exp(h) }", "h")
        assert (node(index, "s"), 0) not in plan.reads

    def test_integers_do_not_appear(self) -> None:
        _, plan = laid("g (int64[2] i) => (int64[2] j) { j = Neg(i) }")
        assert (plan.stored, plan.reads, plan.leaves, plan.casts) == ({}, {}, {}, ())

    def test_narrow_inputs_and_outputs(self) -> None:
        index, plan = laid("g (float[2] x) => (float[2] y) { y = Exp(x) }", narrow_io=True)
        assert stored(index, plan) == {"x": "fp16", "y": "fp32"}
        assert plan.leaves == {(0, 0): "fp16"}
        assert casts(index, plan) == [("x", "fp32", ""), ("y", "fp16", "")]

    def test_values_that_are_narrow_already_are_left_alone(self) -> None:
        index, plan = laid("g (float16[2] x) => (float16[2] y) { y = Neg(x) }")
        assert stored(index, plan) == {}


class TestSharing:
    def test_one_cast_per_value_and_target(self) -> None:
        index, plan = laid(
            "g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(x)  c = Mul(a, b)  y = Exp(c) }", "a", "b", "c"
        )
        assert casts(index, plan) == [("x", "fp16", ""), ("c", "fp32", "")]

    BRANCHES = """
        g (float[2] x, bool c) => (float[2] y) {
          h = Exp(x)  o = Neg(h)
          y = If(c) <then_branch = t () => (float[2] u) { a = Abs(h)  u = Mul(a, o) },
                     else_branch = e () => (float[2] v) { b = Neg(h)  v = Mul(b, o) }> }"""

    def test_bodies_share_a_cast_around_them(self) -> None:
        index, plan = laid(self.BRANCHES, "o", "a", "b", "u", "v")
        assert [c for c in casts(index, plan) if c[0] == "h"] == [("h", "fp16", "")]

    def test_bodies_that_do_not_see_one_have_their_own(self) -> None:
        index, plan = laid(self.BRANCHES, "a", "b")
        assert [c for c in casts(index, plan) if c[0] == "h"] == [
            ("h", "fp16", "If.then_branch/"), ("h", "fp16", "If.else_branch/"),
        ]  # fmt: skip


class TestBodies:
    IF = """
        g (float[2] x, bool c) => (float[2] y) {{
          y = If(c) <then_branch = t () => (float[2] u) {{ u = Neg(x) }},
                     else_branch = e () => (float[2] v) {{ v = {other}(x) }}> }}"""

    @pytest.mark.parametrize(("narrow", "expected"), [(("u", "v"), "fp16"), (("u",), "fp32"), ((), "fp32")])
    def test_an_if_is_narrow_when_both_branches_are(self, narrow: tuple[str, ...], expected: str) -> None:
        index, plan = laid(self.IF.format(other="Abs"), *narrow)
        assert plan.stored[value(index, "y")] == expected
        assert {f for (s, _), f in plan.leaves.items() if s} == {expected}

    def test_a_branch_that_hands_out_a_constant_follows_the_other(self) -> None:
        text = self.IF.format(other="Abs").replace(
            "(float[2] v) { v = Abs(x) }", "(float[2] v) <float[2] v = {1, 2}> { }"
        )
        index, plan = laid(text, "u")
        assert plan.stored[value(index, "y")] == "fp16"

    def test_an_if_of_an_opset_without_the_type_stays_wide(self) -> None:
        index = indexed(self.IF.format(other="Abs"), 13)
        plan = plan_with(index, "u", "v", to="bf16")
        assert plan.stored[value(index, "y")] == "fp32"

    LOOP = """
        g (float[2] x, int64 n) => (float[2] y, float[N, 2] s) {
          y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] z, float[2] r) {
            d = Identity(c)  r = Neg(h)  z = Abs(r) }> }"""

    def test_states_of_a_loop_stay_wide(self) -> None:
        index, plan = laid(self.LOOP, "r", "z")
        found = stored(index, plan)
        assert (found["h"], found["y"], found["s"]) == ("fp32", "fp32", "fp16")
        body = index.bodies[0]["body"]
        assert (plan.leaves[body, 1], plan.leaves[body, 2]) == ("fp32", "fp16")

    SCAN = """
        g (float[2] x, float[3, 2] q) => (float[2] y, float[3, 2] s) {{
          p = Neg(q)
          y, s = Scan<num_scan_inputs = 1, body = b (float[2] h, float[2] e) => (float[2] o, float[2] r) {{
            r = Abs(e)  o = Add(h, r) }}>({lengths}x, p) }}"""

    def test_a_scanned_input_enters_as_it_is_stored(self) -> None:
        index, plan = laid(self.SCAN.format(lengths=""), "p", "r")
        found = stored(index, plan)
        assert (found["e"], found["h"], found["s"], found["y"]) == ("fp16", "fp32", "fp16", "fp32")
        index, plan = laid(self.SCAN.format(lengths=""), "r")
        assert stored(index, plan)["e"] == "fp32"

    def test_a_sequence_map_stays_wide_outside(self) -> None:
        index, plan = laid(
            """
            g (float[6] x) => (float[6] y) {
              s = SplitToSequence<axis = 0>(x)
              m = SequenceMap(s) <body = b (float[1] e) => (float[1] r) { r = Neg(e) }>
              y = ConcatFromSequence<axis = 0>(m) }""",
            "r",
        )
        found = stored(index, plan)
        assert (found["e"], found["r"]) == ("fp32", "fp16")
        assert plan.leaves[1, 0] == "fp32"

    def test_bodies_we_do_not_walk_stay_as_they_are(self) -> None:
        """BeamSearch and its kin hold graphs that ONNX Runtime runs; here a custom operator with a body."""
        text = """
            g (float[2] x) => (float[2] y) {
              k = Neg(x)  y = mine.Each(k) <body = b (float[2] e) => (float[2] r) { r = Abs(e) }> }"""
        index = indexed(text, domains={"mine": 1})
        assert stored(index, plan_with(index, "k"))["r"] == "fp32"
