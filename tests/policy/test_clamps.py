"""The three zones of a range against the maximum, and where Clips stand."""

from __future__ import annotations

import numpy as np
import pytest

from converter.policy.clamps import zone
from converter.policy.decide import decide
from converter.types import ClampSite
from tests.models.build import value
from tests.models.run import floats
from tests.policy.rules.asking import context

NEG = "g (float[2] x) => (float[2] y) { h = Exp(x)  [sign] y = Neg(x) }"


@pytest.mark.parametrize(
    ("largest", "headroom", "expected"),
    [(1.0, 2.0, None), (32752.0, 2.0, None), (32753.0, 2.0, "guard"), (65504.0, 2.0, "guard"), (65505.0, 2.0, "beyond"),
     (65504.0, 1.0, None), (20000.0, 4.0, "guard"), (np.inf, 2.0, None)],
)  # fmt: skip
def test_zones(largest: float, headroom: float, expected: str | None) -> None:
    given = context(NEG, {"x": floats([largest, 1])}, headroom=headroom)
    assert zone(given, given.seen(value(given.index, "x"))) == expected


def test_nothing_seen_is_no_zone() -> None:
    assert zone(context(NEG), None) is None


def sites(text: str, largest: float, **options: object) -> list[tuple[str, str, str]]:
    plan = decide(context(text, {"x": floats([largest, 1])}, **options))
    return [(c.value, c.place, c.zone) for c in plan.clamps]


def test_a_site_says_everything() -> None:
    plan = decide(context("g (float[2] x) => (float[2] y) { [square] y = Mul(x, x) }", {"x": floats([300, 1])}))
    (clamp,) = plan.clamps
    assert clamp == ClampSite(1, "y", "square", "output", "beyond", 65504.0, 90000.0)


def test_in_front_of_the_cast_of_a_value() -> None:
    assert sites("g (float[2] x) => (float[2] y) { [sign] y = Neg(x) }", 1e5) == [("x", "cast", "beyond")]


def test_behind_the_node_that_makes_it() -> None:
    text = "g (float[2] x) => (float[2] y) { [square] h = Mul(x, x)  [sign] y = Neg(h) }"
    assert sites(text, 200) == [("h", "output", "guard")]


def test_data_movement_of_a_limited_value_gets_none() -> None:
    text = "g (float[2] x) => (float[2] y) { [square] h = Mul(x, x)  [move] t = Identity(h)  [sum] y = Add(t, t) }"
    assert ("t", "output", "guard") not in sites(text, 160)


def test_widen_inserts_none() -> None:
    assert sites("g (float[2] x) => (float[2] y) { [sign] y = Neg(x) }", 1e5, overflow="widen") == []


def test_a_value_that_held_an_infinity_gets_none() -> None:
    plan = decide(context("g (float[2] x) => (float[2] y) { [sign] y = Neg(x) }", {"x": floats([5e4, np.inf])}))
    assert plan.clamps == ()


def test_bf16_needs_none() -> None:
    assert sites("g (float[2] x) => (float[2] y) { [sign] y = Neg(x) }", 1e30, to="bf16") == []
