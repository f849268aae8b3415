"""Ranges against a plain version, then edges by name."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.formats import BF16, FP16, FP32
from converter.numerics.chunks import CHUNK
from converter.numerics.range_sums import UNSEEN, RangeSums, larger_shape
from converter.numerics.rounding import to_storage
from converter.types import EXPONENT_BINS, ValueRange

NAN, INF = math.nan, math.inf
relaxed = settings(max_examples=200, deadline=None, derandomize=True)


def seen(*arrays, dtype=np.float32) -> ValueRange:
    sums = RangeSums()
    for array in arrays:
        sums.add(np.array(array, dtype))
    return sums.result()


def plain(x: np.ndarray) -> ValueRange:
    """The same by whole-array NumPy, the exponent from frexp."""
    finite = x[np.isfinite(x)].astype(np.float64)
    magnitudes = np.abs(finite[finite != 0])
    biased = np.maximum(np.frexp(magnitudes)[1] + 126, 0)
    exponents = np.bincount(biased, minlength=EXPONENT_BINS)
    exponents[-1] += np.count_nonzero(~np.isfinite(x))
    return ValueRange(
        shape=x.shape,
        count=x.size,
        zeros=int(np.count_nonzero(x == 0)),
        minimum=float(finite.min()) if finite.size else 0.0,
        maximum=float(finite.max()) if finite.size else 0.0,
        absmax=float(np.abs(finite).max(initial=0)),
        absmin_nonzero=float(magnitudes.min()) if magnitudes.size else 0.0,
        nan_count=int(np.count_nonzero(np.isnan(x))),
        posinf_count=int(np.count_nonzero(np.isposinf(x))),
        neginf_count=int(np.count_nonzero(np.isneginf(x))),
        integral=bool((np.rint(finite) == finite).all()),
        exponents=tuple(exponents.tolist()),
    )


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_agrees_with_whole_array_numpy(size):
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    x[::7] = 0
    assert seen(x) == plain(x)
    assert seen(np.rint(3 * x)) == plain(np.rint(3 * x))


@relaxed
@given(values=st.lists(st.floats(width=32), max_size=30))
def test_any_float32_values(values):
    x = np.array(values, np.float32)
    assert seen(x) == plain(x)


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
def test_narrow_storage_gives_the_range_of_its_values(fmt):
    narrow = to_storage(np.random.default_rng(0).standard_normal(50_000).astype(np.float32), fmt)
    sums = RangeSums()
    sums.add(narrow)
    assert sums.result() == plain(narrow.astype(np.float32))


def test_every_exponent_has_its_bin():
    patterns = (np.arange(256, dtype=np.uint32) << 23).view(np.float32)
    patterns[0] = 1e-40
    assert seen(patterns, -patterns).exponents == (2,) * EXPONENT_BINS


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], {"count": 0, "minimum": 0.0, "maximum": 0.0, "absmax": 0.0, "absmin_nonzero": 0.0, "integral": True}),
        ([-0.0, 0.0], {"zeros": 2, "absmax": 0.0, "absmin_nonzero": 0.0, "exponents": (0,) * EXPONENT_BINS}),
        ([3], {"minimum": 3.0, "maximum": 3.0, "absmax": 3.0, "absmin_nonzero": 3.0, "integral": True}),
        ([-5, 0, 2], {"minimum": -5.0, "maximum": 2.0, "absmax": 5.0, "absmin_nonzero": 2.0, "zeros": 1}),
        ([NAN, INF, -INF, INF], {"nan_count": 1, "posinf_count": 2, "neginf_count": 1, "nonfinite": 4, "absmax": 0.0}),
        ([NAN, INF], {"minimum": 0.0, "maximum": 0.0, "absmin_nonzero": 0.0, "integral": True}),
        ([-INF, -2, NAN, 0.25, 0], {"minimum": -2.0, "maximum": 0.25, "absmin_nonzero": 0.25, "integral": False}),
        ([NAN, 4, INF], {"minimum": 4.0, "maximum": 4.0, "integral": True}),
        ([1e-45, 0], {"absmin_nonzero": float(np.float32(1e-45)), "zeros": 1}),
        ([[1, 2], [3, 4]], {"shape": (2, 2)}),
        (7.0, {"shape": (), "count": 1}),
    ],
    ids=str,
)
def test_edges(values, expected):
    result = seen(values)
    assert {name: getattr(result, name) for name in expected} == expected


def test_nothing_seen():
    result = RangeSums().result()
    assert (result.shape, result.count) == (UNSEEN, 0)
    assert result == seen(np.empty(0))


def test_accumulates_over_calls():
    parts = [np.random.default_rng(n).standard_normal((2, 100)).astype(np.float32) for n in range(4)]
    assert seen(*parts) == replace(plain(np.concatenate(parts)), shape=(2, 100))


def test_a_late_fraction_is_found():
    x = np.arange(2 * CHUNK, dtype=np.float32)
    assert seen(x).integral
    x[-1] = 0.5
    assert not seen(x).integral


def test_no_temporary_is_as_large_as_the_array():
    x = np.arange(2_000_000, dtype=np.float32)
    x[::1000] = NAN
    sums = RangeSums()
    sums.add(x[:1])
    tracemalloc.start()
    sums.add(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * CHUNK < x.nbytes / 10


def test_transposed_arrays():
    x = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    sums = RangeSums()
    sums.add(x.T)
    assert sums.result().exponents == seen(x).exponents


def test_float64_is_held_inside_fp32():
    result = seen([1e300, -1e300, 1e-300, INF, 0.0], dtype=np.float64)
    assert (result.maximum, result.minimum) == (FP32.max_finite, -FP32.max_finite)
    assert result.absmin_nonzero == FP32.smallest_subnormal
    assert (result.zeros, result.posinf_count) == (1, 1)
    assert not result.integral
    assert not seen([2.0**24 + 0.5], dtype=np.float64).integral


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [((2, 3), (7,), (7,)), ((2, 3), (3, 2), (3, 2)), (UNSEEN, (), ()), (UNSEEN, (0, 4), (0, 4)), ((1,), (), (1,))],
    ids=str,
)
def test_larger_shape(a, b, expected):
    assert larger_shape(a, b) == larger_shape(b, a) == expected
