"""Price lists and their cuts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.search.planner import Evaluation
from converter.search.prices import Cut, Price, cuts
from converter.search.repair import calibration, choose_cut
from converter.types import PrecisionPlan

PLAN = PrecisionPlan("fp16", (), {}, {}, {}, (), ())


def price(cost: float, *nodes: int) -> Price:
    return Price(cost, frozenset(nodes), 0)


def evaluation(ratio: float) -> Evaluation:
    return Evaluation(PLAN, frozenset(), ratio, ratio)


class TestCuts:
    def test_each_prefix_removes_what_its_nodes_pay_for(self) -> None:
        assert cuts([price(4, 1), price(2, 2), price(1, 3)]) == [
            Cut(0, frozenset(), 7.0), Cut(1, frozenset({1}), 3.0), Cut(2, frozenset({1, 2}), 1.0),
            Cut(3, frozenset({1, 2, 3}), 0.0),
        ]  # fmt: skip

    def test_a_rounding_goes_when_all_its_nodes_do(self) -> None:
        found = cuts([price(4, 1, 2), price(3, 1), price(2, 2, 3)])
        assert [(c.nodes, c.remaining) for c in found] == [
            (frozenset(), 9.0), (frozenset({1, 2}), 2.0), (frozenset({1, 2, 3}), 0.0),
        ]  # fmt: skip

    def test_nodes_that_are_fixed_cost_nothing(self) -> None:
        found = cuts([price(4, 1), price(2, 2)], fixed=[1])
        assert [(c.nodes, c.remaining) for c in found] == [(frozenset(), 2.0), (frozenset({2}), 0.0)]

    def test_nothing_to_cut(self) -> None:
        assert cuts([]) == [Cut(0, frozenset(), 0.0)]

    prices = st.lists(
        st.builds(
            Price,
            st.integers(1, 2**20).map(float),
            st.frozensets(st.integers(0, 6), min_size=1, max_size=3),
            st.just(0),
        ),
        max_size=12,
    )

    @given(prices)
    def test_algebra(self, given_prices: list[Price]) -> None:
        """Nodes grow strictly, what remains never grows, and it is what the other roundings cost."""
        found = cuts(given_prices)
        assert found[0].nodes == frozenset()
        for before, after in pairwise(found):
            assert before.nodes < after.nodes
            assert before.remaining >= after.remaining
        for cut in found:
            rest = sum(p.cost for p in given_prices if not p.nodes <= cut.nodes)
            assert cut.remaining == pytest.approx(rest)
        assert found[-1].remaining == 0.0


class TestCalibration:
    @pytest.mark.parametrize(
        ("predicted", "ratio", "expected"),
        [(4.0, 2.0, 1.0), (1.0, 2.0, 4.0), (16.0, 2.0, 0.25), (0.0, 2.0, 1.0), (1.0, 0.0, 1.0),
         (1.0, float("inf"), 1.0), (1.0, float("nan"), 1.0), (1.0, 100.0, 1.0), (1e6, 2.0, 1.0)],
        ids=["as predicted", "more", "less", "nothing predicted", "nothing measured", "broken", "unknown", "far beyond",
             "saturated"],
    )  # fmt: skip
    def test_measured_over_predicted(self, predicted: float, ratio: float, expected: float) -> None:
        assert calibration(predicted, ratio) == expected

    def test_the_shortest_cut_that_leaves_little_enough(self) -> None:
        prices = [price(4, 1), price(2, 2), price(1, 3)]
        assert choose_cut(prices, evaluation(7**0.5), 3.1).nodes == {1}
        assert choose_cut(prices, evaluation(7**0.5), 2.9).nodes == {1, 2}
        assert choose_cut(prices, evaluation(7**0.5), 0.0).nodes == {1, 2, 3}

    def test_prices_are_scaled_by_what_was_measured(self) -> None:
        prices = [price(4, 1), price(2, 2), price(1, 3)]
        assert choose_cut(prices, evaluation(14**0.5), 3.1).nodes == {1, 2}  # twice as much as predicted
