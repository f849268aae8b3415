"""The core figures against a plain whole-array version, then every edge by name."""

from __future__ import annotations

import math
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.formats import BF16, FP16
from converter.numerics.chunks import CHUNK
from converter.numerics.error_sums import DifferenceNorm, ErrorSums, relative_l2, sqnr_db, worst
from converter.numerics.rounding import round_to, to_storage
from converter.types import ErrorFigures

NAN, INF = math.nan, math.inf
relaxed = settings(max_examples=200, deadline=None, derandomize=True)
# Any order of summation errs by a few float64 ULP per term; lengths here stay below 1e5.
close = {"rel": 1e-12, "abs": 1e-300}
# Large pieces of float32 add squares in float32 over rows of 8192: 128 additions in each of 64 lanes, each within
# half an ULP (6e-8), so at most 8e-6 and in practice a tenth of the root of that many.
near = {"rel": 1e-6, "abs": 1e-300}


@pytest.fixture(autouse=True, params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to the same sums."""
    if request.param == "numpy":
        monkeypatch.setattr("converter.numerics.compiled._KERNEL", None)


def figures(reference, value, fmt=None, dtype=np.float32) -> ErrorFigures:
    sums = ErrorSums()
    sums.add(np.array(reference, dtype), np.array(value, dtype), fmt)
    return sums.figures()


def plain(reference: np.ndarray, value: np.ndarray) -> tuple[float | None, float, float]:
    """Relative L2, largest absolute error and cosine by whole-array float64 NumPy."""
    kept = np.isfinite(reference) & np.isfinite(value)
    a, b = reference[kept].astype(np.float64), value[kept].astype(np.float64)
    difference, norm_a, norm_b = np.linalg.norm(a - b), np.linalg.norm(a), np.linalg.norm(b)
    relative = difference / norm_a if norm_a else (0.0 if not difference else None)
    cosine = a @ b / norm_a / norm_b if norm_a and norm_b else float(norm_a == norm_b)
    return relative, float(np.abs(a - b).max(initial=0)), cosine


# ------------------------------------------------------------------------------- against the definition


@pytest.mark.parametrize("size", [1, 100, 8192, 8193, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 8192 + 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_whole_array_float64(size, dtype):
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    y = round_to(x.astype(np.float32), BF16).astype(dtype)
    relative, largest, cosine = plain(x, y)
    seen = figures(x, y, BF16, dtype)
    assert seen.count == size
    within = near if dtype == np.float32 and size > 2048 else close
    assert seen.rel_l2_error == pytest.approx(relative, **within)
    assert seen.sqnr_db == pytest.approx(-20 * math.log10(relative), **within)
    assert 1 - seen.cosine_similarity == pytest.approx(1 - cosine, rel=1e-5, abs=1e-15)
    assert seen.max_abs_error == largest
    assert seen.absmax == np.abs(x).max()
    assert relative_l2(x, y) == pytest.approx(relative, **close)


@relaxed
@given(pairs=st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), max_size=30))
def test_any_float32_pairs(pairs):
    x, y = (np.array(side, np.float32) for side in (zip(*pairs, strict=True) if pairs else ((), ())))
    relative, largest, cosine = plain(x, y)
    seen = figures(x, y, FP16)
    absolute = float(np.linalg.norm(np.where(np.isfinite(x) & np.isfinite(y), y, 0).astype(np.float64)))
    assert seen.rel_l2_error == pytest.approx(absolute if relative is None else relative, **close)
    assert relative_l2(x, y) == (None if relative is None else pytest.approx(relative, **close))
    assert seen.max_abs_error == largest
    # Absolute: orthogonal vectors cancel, and norms below 1e-45 or so make the plain version lose digits.
    assert seen.cosine_similarity == pytest.approx(cosine, abs=1e-9)
    assert -1 <= seen.cosine_similarity <= 1
    assert seen.reference_nonfinite == np.count_nonzero(~np.isfinite(x))
    assert seen.value_nonfinite == np.count_nonzero(~np.isfinite(y))
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    either = ~np.isfinite(x) | ~np.isfinite(y)
    assert seen.misplaced_nonfinite == np.count_nonzero(either & ~same)
    assert seen.equal == bool(same.all())
    assert seen.saturated == np.count_nonzero((np.abs(y) == FP16.max_finite) & (np.abs(x) > FP16.max_finite))
    assert seen.flushed == np.count_nonzero((y == 0) & (x != 0) & np.isfinite(x))


def test_accumulates_over_calls():
    generator = np.random.default_rng(2)
    x = generator.standard_normal((3, 50_000)).astype(np.float32)
    y = round_to(x, FP16)
    sums, norm = ErrorSums(), DifferenceNorm()
    for a, b in zip(x, y, strict=True):
        sums.add(a, b, FP16)
        norm.add(a, b)
    whole = figures(x, y, FP16)
    seen = sums.figures()
    assert seen.count == whole.count == x.size
    assert seen.rel_l2_error == pytest.approx(whole.rel_l2_error, **near)
    assert norm.relative() == pytest.approx(whole.rel_l2_error, **near)
    assert (seen.max_abs_error, seen.absmax) == (whole.max_abs_error, whole.absmax)


@pytest.mark.parametrize(("fmt", "floor"), [(FP16, 73.7), (BF16, 55.6)], ids=["fp16", "bf16"])
def test_rounding_floor_of_normal_numbers(fmt, floor):
    x = np.random.default_rng(0).standard_normal(1_000_000).astype(np.float32)
    assert figures(x, round_to(x, fmt), fmt).sqnr_db == pytest.approx(floor, abs=0.1)


def test_strides_and_storage_types():
    x = np.random.default_rng(1).standard_normal((300, 200)).astype(np.float32)
    expected = figures(x, round_to(x, BF16), BF16)
    sums = ErrorSums()
    sums.add(x.T, to_storage(x, BF16).T, BF16)
    assert sums.figures().rel_l2_error == pytest.approx(expected.rel_l2_error, **near)
    for fmt in (FP16, BF16):
        assert relative_l2(x, to_storage(x, fmt)) == pytest.approx(relative_l2(x, round_to(x, fmt)), **near)


def test_rank_0():
    assert figures(2.0, 1.0).rel_l2_error == 0.5


def test_threads_do_not_share_scratch():
    x = np.random.default_rng(1).standard_normal(400_000).astype(np.float32)
    values = [x * np.float32(1 + 0.1 * n) for n in range(8)]
    alone = [figures(x, y) for y in values]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda y: figures(x, y), values)) == alone


def test_no_temporary_is_as_large_as_the_array():
    x = np.ones(2_000_000, np.float32)
    x[::1000] = NAN
    figures = ErrorSums()
    relative_l2(x[:1], x[:1])  # makes this thread's scratch
    tracemalloc.start()
    figures.add(x, x, FP16)
    relative_l2(x, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The path for NaN makes a few boolean and one float64 array of a piece: 12 bytes an element at most.
    assert peak < 16 * CHUNK < x.nbytes / 10


def test_shapes_must_agree():
    text = r"^reference has shape \(2, 3\) and value \(3, 2\); they must be equal$"
    with pytest.raises(ValueError, match=text):
        figures(np.zeros((2, 3)), np.zeros((3, 2)))
    with pytest.raises(ValueError, match=text):
        relative_l2(np.zeros((2, 3)), np.zeros((3, 2)))


# --------------------------------------------------------------------------------------------- edges


def edges(seen: ErrorFigures) -> tuple[float | None, float | None, float, bool, bool]:
    return seen.rel_l2_error, seen.sqnr_db, seen.cosine_similarity, seen.equal, seen.zero_reference


@pytest.mark.parametrize(
    ("reference", "value", "expected"),
    [
        ([], [], (0.0, None, 1.0, True, False)),
        ([1, 2], [1, 2], (0.0, None, 1.0, True, False)),
        ([0, 0], [0, -0.0], (0.0, None, 1.0, True, True)),
        ([0, 0], [0, 1], (1.0, None, 0.0, False, True)),
        ([0, 2], [0, 0], (1.0, 0.0, 0.0, False, False)),
        ([1, 0], [0, 1], (math.sqrt(2), pytest.approx(-10 * math.log10(2)), 0.0, False, False)),
        ([3], [-3], (2.0, pytest.approx(-20 * math.log10(2)), -1.0, False, False)),
        ([NAN, 1], [NAN, 1], (0.0, None, 1.0, True, False)),
        ([NAN, 1], [5, 1], (0.0, None, 1.0, False, False)),
        ([INF, -INF], [INF, -INF], (0.0, None, 1.0, True, False)),
        ([INF], [-INF], (0.0, None, 1.0, False, False)),
        ([NAN, 0], [NAN, 0], (0.0, None, 1.0, True, True)),
        ([5, 0], [INF, 1], (1.0, None, 0.0, False, True)),
    ],
    ids=str,
)
def test_defined_edges(reference, value, expected):
    assert edges(figures(reference, value)) == expected


@pytest.mark.parametrize(
    ("reference", "value", "counts"),
    [
        ([NAN], [NAN], (1, 1, 0)),
        ([NAN], [INF], (1, 1, 1)),
        ([INF], [-INF], (1, 1, 1)),
        ([INF], [INF], (1, 1, 0)),
        ([1], [INF], (0, 1, 1)),
        ([-INF], [1], (1, 0, 1)),
        ([1, NAN, 2], [1, 3, NAN], (1, 1, 2)),
    ],
    ids=str,
)
def test_nonfinite_elements_are_compared_by_position_and_sign(reference, value, counts):
    seen = figures(reference, value)
    assert (seen.reference_nonfinite, seen.value_nonfinite, seen.misplaced_nonfinite) == counts


def test_nonfinite_elements_do_not_enter_the_sums():
    seen = figures([3, 4, 100, NAN], [3, 5, INF, 7])
    assert seen.rel_l2_error == pytest.approx(1 / 5)
    assert seen.max_abs_error == 1
    assert seen.absmax == 100


def test_one_nonfinite_piece_among_finite_ones():
    x = np.ones(3 * CHUNK, np.float32)
    y = x.copy()
    y[CHUNK + 7] = NAN
    y[-1] = 2
    seen = figures(x, y)
    assert seen.misplaced_nonfinite == 1
    assert seen.rel_l2_error == pytest.approx(1 / math.sqrt(3 * CHUNK - 1))


@pytest.mark.parametrize(
    ("reference", "value", "saturated", "flushed"),
    [
        ([70000, -1e9, 65504], [65504, -65504, 65504], 2, 0),
        ([65519], [65504], 1, 0),
        ([INF, -INF], [65504, -65504], 2, 0),
        ([70000], [INF], 0, 0),
        ([1e-8, -1e-8, 0], [0, -0.0, 0], 0, 2),
        ([NAN, INF], [0, 0], 0, 0),
        ([1e-8, NAN, 70000], [0, NAN, 65504], 1, 1),
    ],
    ids=str,
)
def test_saturated_and_flushed(reference, value, saturated, flushed):
    seen = figures(reference, value, FP16)
    assert (seen.saturated, seen.flushed) == (saturated, flushed)
    unstored = figures(reference, value)
    assert (unstored.saturated, unstored.flushed) == (0, 0)


def test_smallest_and_largest_float32_are_measured():
    assert figures([1e-45], [3e-45]).rel_l2_error == pytest.approx(1)
    assert figures([3e38, 3e38], [-3e38, 3e38]).cosine_similarity == pytest.approx(0)


def test_float64_sentinels_do_not_overflow_the_sums():
    seen = figures([-1.7e308, 1.0], [-1.7e308, 2.0], dtype=np.float64)
    assert seen.rel_l2_error == pytest.approx(2.0**-500)
    assert seen.cosine_similarity == 1
    assert seen.max_abs_error == 1
    assert relative_l2(np.array([1e300, 1.0]), np.array([-1e300, 1.0])) == 2


def test_float64_differences_too_small_for_a_square_vanish():
    seen = figures([1.0, 0.0], [1.0, 1e-170], dtype=np.float64)
    assert edges(seen)[:2] == (0.0, None)
    assert not seen.equal


@pytest.mark.parametrize(("relative", "expected"), [(0.1, 20), (2, -6.0206), (0.0, None), (None, None)])
def test_sqnr_db(relative, expected):
    assert sqnr_db(relative) == (None if expected is None else pytest.approx(expected, rel=1e-5))


# --------------------------------------------------------------------------------------------- worst


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (([1, 1], [1, 1]), ([1, 1], [1, 2])),
        (([1, 1], [1, 9]), ([0, 0], [0, 9])),
        (([0, 0], [0, 1]), ([1, NAN], [1, 1])),
        (([1, NAN], [1, 1]), ([NAN, NAN], [1, 1])),
        (([1, 1], [1, 2]), ([2, 2], [2, 4])),
    ],
    ids=["larger error", "zero reference", "misplaced", "more misplaced", "larger absolute error"],
)
def test_worst(better, worse):
    a, b = figures(*better), figures(*worse)
    assert worst(a, b) is b
    assert worst(b, a) is b


def test_worst_of_equals_is_the_first():
    a, b = figures([1], [2]), figures([1], [2])
    assert worst(a, b) is a
