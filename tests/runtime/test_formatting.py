"""Format specs: what a file declares, what a plan lays over it, and constants under a budget."""

from __future__ import annotations

import numpy as np
import pytest

from converter.formats import BF16, FP16
from converter.runtime.formatting import (
    ConstantStore,
    Rounding,
    declared_formats,
    limited,
    planned_formats,
)
from converter.types import ClampSite, EmulationProfile, PrecisionPlan
from tests.models.build import indexed, value


def plan(**fields: object) -> PrecisionPlan:
    empty: dict[str, object] = {"decisions": (), "stored": {}, "reads": {}, "leaves": {}, "casts": (), "clamps": ()}
    return PrecisionPlan(to="fp16", **(empty | fields))  # type: ignore[arg-type]


INDEX = indexed("""
    g (float[2] x, float16[2] n, int64 i) => (float[2] y) <float[2] w = {1.0001, 70000}> {
      h = Mul(x, w)  y = Neg(h) }""")


class TestSpecs:
    def test_declared(self) -> None:
        spec = declared_formats(INDEX)
        assert [spec.stored[value(INDEX, n)] for n in ("x", "n", "i", "h")] == [None, FP16, None, None]
        assert (spec.name, spec.reads, spec.leaves) == ("reference", {}, {})

    def test_planned(self) -> None:
        x, h = value(INDEX, "x"), value(INDEX, "h")
        spec = planned_formats(
            INDEX, plan(stored={x: "fp32", h: "fp16"}, reads={(0, 0): "fp16", (1, 0): "fp16"}, leaves={(0, 0): "fp32"})
        )
        assert spec.stored[h] is FP16
        assert spec.reads == {0: (FP16, None)}  # node 1 reads h as it is stored
        assert spec.leaves == {}

    def test_a_narrow_leaf(self) -> None:
        assert planned_formats(INDEX, plan(leaves={(0, 0): "fp16"})).leaves == {(0, 0): FP16}

    @pytest.mark.parametrize("place", ["cast", "output"])
    def test_clamps(self, place: str) -> None:
        x = value(INDEX, "x")
        spec = planned_formats(INDEX, plan(clamps=(ClampSite(x, "x", "", place, "beyond", 100.0, 200.0),)))
        assert (spec.cast_bounds if place == "cast" else spec.output_bounds) == {x: 100.0}
        assert not (spec.output_bounds if place == "cast" else spec.cast_bounds)

    def test_limited_constants(self) -> None:
        w = value(INDEX, "w")
        assert planned_formats(INDEX, plan(saturated_constants={w: 3e4})).constant_bounds == {w: 3e4}


class TestRounding:
    X = np.array([1.0001, 70000.0, 1e-8, -3.0], np.float32)

    def test_ieee(self) -> None:
        np.testing.assert_array_equal(Rounding(EmulationProfile())(self.X, FP16), np.float32([1, np.inf, 0, -3]))

    def test_saturating_and_flushing(self) -> None:
        profile = EmulationProfile("ascend", overflow="saturate", flush_subnormals=True)
        found = Rounding(profile)(np.append(self.X, np.float32(3e-5)), FP16)
        np.testing.assert_array_equal(found, np.float32([1, 65504, 0, -3, 0]))

    @pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
    def test_wider_types_round_once(self, dtype: type) -> None:
        found = Rounding(EmulationProfile())(np.array([2049, 3], dtype), FP16)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, [2048, 3])


class TestConstants:
    def test_rounded_copies_are_kept_while_the_budget_lasts(self) -> None:
        w = value(INDEX, "w")
        for budget, same in ((8, True), (7, False)):
            store = ConstantStore(INDEX, Rounding(EmulationProfile()), budget)
            first, second = store.rounded(w, FP16, {}), store.rounded(w, FP16, {})
            assert (first is second) is same
            np.testing.assert_array_equal(first, np.float32([1, np.inf]))

    def test_formats_and_bounds_have_copies_of_their_own(self) -> None:
        store, w = ConstantStore(INDEX, Rounding(EmulationProfile())), value(INDEX, "w")
        np.testing.assert_array_equal(store.rounded(w, BF16, {}), np.float32([1, 70144]))
        np.testing.assert_array_equal(store.rounded(w, FP16, {w: 30000.0}), np.float32([1, 30000]))
        np.testing.assert_array_equal(store.rounded(w, FP16, {}), np.float32([1, np.inf]))

    def test_narrow_constants_are_held_as_float32(self) -> None:
        index = indexed("g (float16[1] x) => (float16[1] y) <float16[1] w = {15872}> { y = Mul(x, w) }")
        wide = ConstantStore(index, Rounding(EmulationProfile())).wide(value(index, "w"))
        assert (wide.dtype, wide.tolist()) == (np.float32, [1.5])


def test_limited_keeps_nan() -> None:
    found = limited(np.array([np.nan, np.inf, -5, 1], np.float32), 2.0)
    np.testing.assert_array_equal(found, np.float32([np.nan, 2, -2, 1]))
    assert found.dtype == np.float32


def test_limited_keeps_rank_zero() -> None:
    found = limited(np.array(5, np.float32), 2.0)
    assert isinstance(found, np.ndarray)
    assert (found.shape, float(found)) == ((), 2)
