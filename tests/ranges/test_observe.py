"""Observing: every float value of every scope, merged over batches and iterations."""

from __future__ import annotations

import numpy as np
import pytest

from converter.errors import BatchError
from converter.ranges.batches import Batches
from converter.ranges.observe import PATIENCE, observe
from converter.runtime.interpreter import Interpreter
from tests.models.build import indexed, value
from tests.models.run import floats, ranges_of
from tests.models.tiny import TINY


def test_every_float_value_that_is_no_constant(rng: np.random.Generator) -> None:
    for given in TINY:
        index = given.index()
        ranges = ranges_of(index, [given.feeds(rng)])
        floats = {v for v in range(len(index.values)) if index.is_float(v) and v not in index.constants}
        assert set(ranges) <= floats
        missing = {index.name_of(v) for v in floats - set(ranges)}
        if given.name not in ("branch", "nested", "hidden names", "no iterations"):
            assert not missing, given.name


def test_a_branch_no_batch_takes_was_not_seen(rng: np.random.Generator) -> None:
    given = next(t for t in TINY if t.name == "branch")
    index = given.index()
    other = next(s for s in index.scopes if s.attribute == "else_branch")
    inside = {v for v, s in enumerate(index.value_scope) if s == other.id}
    assert not inside & set(ranges_of(index, [given.feeds(rng)]))


def test_batches_are_merged() -> None:
    index = indexed("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    seen = ranges_of(index, [{"x": floats([1, 2])}, {"x": floats([-5, 0, np.inf])}])[value(index, "y")]
    assert (seen.count, seen.zeros, seen.minimum, seen.maximum) == (5, 1, -2, 5)
    assert (seen.absmax, seen.absmin_nonzero, seen.neginf_count, seen.shape) == (5, 1, 1, (3,))


def test_iterations_are_merged() -> None:
    index = indexed("""
        g (float[1] x, int64 n) => (float[1] y) {
          y = Loop(n, , x) <body = b (int64 i, bool c, float[1] h) => (bool d, float[1] z) {
            d = Identity(c)  z = Add(h, h) }> }""")
    ranges = ranges_of(index, [{"x": floats([1]), "n": np.array(5)}])
    inner, state = ranges[value(index, "z")], ranges[value(index, "h")]
    assert (inner.count, inner.minimum, inner.maximum) == (5, 2, 32)
    assert (state.count, state.minimum, state.maximum) == (5, 1, 16)


def test_progress_counts_batches() -> None:
    index = indexed("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    done: list[int] = []
    observe(Interpreter(index), Batches([{"x": floats([k])} for k in range(3)], index), done.append)
    assert done == [1, 2, 3]


def test_a_bad_later_batch_stops_it() -> None:
    index = indexed("g (float[1] x) => (float[1] y) { y = Neg(x) }")
    with pytest.raises(BatchError, match=r"batch 'batch 1' lacks input 'x'"):
        observe(Interpreter(index), Batches([{"x": floats([1])}, {}], index))


def test_narrow_values_are_seen_as_they_are_stored() -> None:
    index = indexed("g (float[1] x) => (float16[1] y) { y = Cast<to = 10>(x) }")
    assert ranges_of(index, [{"x": floats([1.0001])}])[value(index, "y")].maximum == 1.0


class TestUntilStable:
    """``until_stable`` stops once PATIENCE batches in a row have widened no range."""

    @staticmethod
    def seen(values: list[float], until_stable: bool = True) -> tuple[int, float]:
        index = indexed("g (float[N] x) => (float[N] y) { y = Neg(x) }")
        done: list[int] = []
        batches = Batches([{"x": floats([v])} for v in values], index)
        ranges = observe(Interpreter(index), batches, done.append, until_stable)
        return done[-1], ranges[value(index, "y")].absmax

    def test_stops_after_quiet_batches(self) -> None:
        assert self.seen([1.0] * 30) == (1 + PATIENCE, 1.0)

    def test_growth_starts_the_count_again(self) -> None:
        assert self.seen([1.0] * 5 + [2.0] + [1.0] * 30) == (6 + PATIENCE, 2.0)

    def test_a_hundredth_is_no_growth(self) -> None:
        assert self.seen([1.0] * 5 + [1.009] + [1.0] * 30)[0] == 1 + PATIENCE

    def test_a_new_infinity_starts_the_count_again(self) -> None:
        assert self.seen([1.0] * 5 + [float("inf")] + [1.0] * 30)[0] == 6 + PATIENCE

    def test_without_the_option_every_batch_is_run(self) -> None:
        assert self.seen([1.0] * 12, until_stable=False)[0] == 12
