"""Lock step over batches: accumulated beside local error, clamps that touched something, failures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from converter.compare.lockstep import SideBySide
from converter.compare.run import Comparison, compare
from converter.errors import ModelError
from converter.graph import ModelIndex
from converter.runtime.formatting import planned_formats
from converter.runtime.interpreter import Interpreter
from tests.models.build import indexed, loaded, value
from tests.models.run import clamp, floats, outputs, plan_with
from tests.models.tiny import TINY, Tiny


def compared(
    text: str, batches: list[dict[str, Any]], *narrow: str, clamps: tuple[tuple[str, str], ...] = (), **more: Any
) -> tuple[ModelIndex, Comparison]:
    index = indexed(text)
    plan = plan_with(index, *narrow, clamps=[clamp(index, *c) for c in clamps])
    return index, compare(Interpreter(index), planned_formats(index, plan), batches, **more)


TWO = "g (float[2] x) => (float[2] y) <float k = {1.0001}> { [first] h = Mul(x, k)  [second] y = Mul(h, h) }"


class TestErrors:
    def test_local_is_the_node_alone_accumulated_the_whole_way(self) -> None:
        text = TWO.replace("[2]", "[1000]")
        feeds = {"x": np.random.default_rng(0).standard_normal(1000).astype(np.float32)}
        index, found = compared(text, [feeds], "first", "second")
        y = value(index, "y")
        assert found.accumulated[y].rel_l2_error is not None
        assert found.local[y].rel_l2_error is not None
        assert found.local[y].rel_l2_error < found.accumulated[y].rel_l2_error

    def test_a_wide_node_behind_narrow_ones_has_no_error_of_its_own(self) -> None:
        index, found = compared(TWO, [{"x": floats([1.0, 3.0])}], "first")
        y = value(index, "y")
        assert found.accumulated[y].rel_l2_error
        assert y not in found.local or not found.local[y].rel_l2_error or found.local[y].rel_l2_error < 1e-3

    def test_the_worst_batch_per_value(self) -> None:
        index, found = compared(TWO, [{"x": floats([1.0, 1.0])}, {"x": floats([1.0, 0.0])}], "first", "second")
        single = compared(TWO, [{"x": floats([1.0, 1.0])}], "first", "second")[1]
        h = value(index, "h")
        first, worst = single.accumulated[h].rel_l2_error, found.accumulated[h].rel_l2_error
        assert first is not None
        assert worst is not None
        assert worst >= first
        assert found.batches == 2

    def test_outputs_only(self) -> None:
        _, found = compared(TWO, [{"x": floats([1.0, 3.0])}], "first", layers=False)
        assert (found.accumulated, found.local) == ({}, {})
        assert found.outputs["y"].figures is not None

    def test_every_metric(self) -> None:
        index, found = compared(TWO, [{"x": floats([1.0, 3.0])}], "first", every_metric=True)
        assert found.accumulated[value(index, "h")].max_ulp_error is not None
        assert (
            compared(TWO, [{"x": floats([1.0, 3.0])}], "first")[1].accumulated[value(index, "h")].max_ulp_error is None
        )

    def test_sequences(self) -> None:
        index, found = compared(
            """g (float[2, 2] x) => (float[4, 2] y) {
                 h = MatMul(x, x)  s = SequenceConstruct(h, h)  y = ConcatFromSequence<axis = 0>(s) }""",
            [{"x": np.full((2, 2), 1.0001, np.float32)}],
            "h",
        )
        assert found.accumulated[value(index, "s")].rel_l2_error


class TestClamps:
    @pytest.mark.parametrize(("name", "place"), [("x", "cast"), ("h", "output")])
    def test_elements_beyond_the_bound_are_counted_over_batches(self, name: str, place: str) -> None:
        index, found = compared(TWO, [{"x": floats([1e5, -1e6])}, {"x": floats([1.0, 7e4])}], "first", "second",
                                clamps=((name, place),))  # fmt: skip
        assert found.touched == {value(index, name): 3}


class TestKept:
    def test_outputs_of_the_first_batches(self) -> None:
        batches = [{"x": floats([k, 1.0])} for k in range(3)]
        assert compared(TWO, batches, "first")[1].kept_outputs == []
        found = compared(TWO, batches, "first", keep=2, keep_references=True)[1]
        assert len(found.kept_outputs) == 2
        assert [r["y"].shape for r in found.references] == [(2,)] * 3

    def test_progress(self) -> None:
        done: list[int] = []
        compared(TWO, [{"x": floats([1.0, 1.0])}] * 3, "first", progress=done.append)
        assert done == [1, 2, 3]


def test_a_mixed_run_that_fails_is_told_once() -> None:
    _, found = compared(
        """g (float[1] x) => (float[K] y) <float[4] data = {1, 2, 3, 4}, float k = {1}> {
             [round] h = Mul(x, k)  f = Floor(h)  i = Cast<to = 7>(f)  [shape] y = Reshape(data, i) }""",
        [{"x": floats([4.0])}, {"x": floats([4.9999])}, {"x": floats([4.9999])}],
        "round",
    )
    (reason,) = found.failures
    assert reason.message.startswith("the mixed model fails at node 'shape' in batch 1: ")
    assert found.outputs["y"].errors == [0.0, math.inf, math.inf]


class TestSideBySide:
    @pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
    def test_a_model_beside_itself(self, given: Tiny, rng: np.random.Generator) -> None:
        feeds = given.feeds(rng)
        left, right = given.index(), given.index()
        side = SideBySide(Interpreter(left), Interpreter(right))
        expected, got, failure = side.run(feeds, feeds)
        assert failure is None
        assert list(expected) == list(got)
        assert all(f.equal for f in side.worst.values())

    def test_values_in_another_order(self) -> None:
        left = indexed("g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(x)  y = Add(a, b) }")
        right = indexed("g (float[2] x) => (float[2] y) { b = Abs(x)  a = Neg(x)  y = Add(a, b) }")
        side = SideBySide(Interpreter(left), Interpreter(right))
        side.run({"x": floats([1, -2])}, {"x": floats([1, -2])})
        assert {n for n, f in side.worst.items() if f.equal} == {"x", "a", "b", "y"}

    def test_a_failing_reference_is_raised(self) -> None:
        broken = indexed("g (float[2] x, int64 n) => (float[K] y) { i = Unsqueeze(n, z)  y = Reshape(x, i) }",
                         weights={"z": np.array([0])})  # fmt: skip
        side = SideBySide(Interpreter(broken), Interpreter(broken))
        feeds = {"x": floats([1, 2]), "n": np.array(3)}
        with pytest.raises(ModelError, match=r"fails in FP32 on this batch"):
            side.run(feeds, feeds)

    def test_names_that_only_one_side_has(self) -> None:
        left = indexed("g (float[2] x) => (float[2] y) { a = Neg(x)  y = Abs(a) }")
        right = indexed("g (float[2] x) => (float[2] y) { y = Abs(x) }")
        side = SideBySide(Interpreter(left), Interpreter(right))
        expected, got, _ = side.run({"x": floats([1, -2])}, {"x": floats([1, -2])})
        np.testing.assert_array_equal(expected["y"], got["y"])
        assert set(side.worst) == {"x", "y"}


def test_a_plan_of_nothing_compares_equal(rng: np.random.Generator) -> None:
    for given in TINY:
        feeds = given.feeds(rng)
        index = loaded(given.model()).index
        found = compare(Interpreter(index), planned_formats(index, plan_with(index)), [feeds])
        assert all(r.mismatches == 0 and (r.figures is None or r.figures.equal) for r in found.outputs.values())
        assert outputs(index, feeds).keys() == found.outputs.keys()
