"""The full figures: each by a small case, then whole arrays against plain NumPy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from converter.formats import BF16, FP16
from converter.numerics.chunks import CHUNK
from converter.numerics.error_sums import ErrorSums
from converter.numerics.full_metrics import combine_full, full_figures, looks_like_scores, top1_agreement, worst_row
from converter.numerics.rounding import round_to, ulp
from converter.types import ErrorFigures

NAN, INF = math.nan, math.inf


def full(reference, value, fmt=FP16, dtype=np.float32) -> ErrorFigures:
    a, b = np.array(reference, dtype), np.array(value, dtype)
    sums = ErrorSums()
    sums.add(a, b, fmt)
    return full_figures(sums.figures(), a, b, fmt)


@pytest.mark.parametrize("shape", [(70_000,), (700, 100), (7, 100, 100), (3, CHUNK + 100), (2, 3 * CHUNK + 1), (9, 1)])
def test_agrees_with_whole_array_numpy(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y = round_to(x, FP16)
    seen = full(x, y)
    a, b = x.astype(np.float64), y.astype(np.float64)
    large = np.abs(a) >= FP16.smallest_normal
    rows, others = (v.reshape(-1, shape[-1]) for v in (a, b))
    by_row = np.linalg.norm(rows - others, axis=1) / np.linalg.norm(rows, axis=1)
    assert seen.max_rel_error == pytest.approx((np.abs(a - b)[large] / np.abs(a)[large]).max())
    assert seen.max_rel_left_out == np.count_nonzero(~large)
    assert seen.max_ulp_error == (np.abs(a - b) / ulp(a, FP16)).max()
    assert 0.49 < seen.max_ulp_error <= 0.5 or x.size < 100
    assert seen.worst_row_rel_l2 == pytest.approx(by_row.max())
    assert seen.top1_agreement == (rows.argmax(1) == others.argmax(1)).mean() or shape[-1] == 1


def test_core_figures_are_kept():
    seen = full([1, 2, 4], [1, 2, 5])
    assert seen.rel_l2_error == pytest.approx(1 / math.sqrt(21))
    assert seen.max_rel_error == 0.25


def test_relative_error_leaves_small_references_out():
    seen = full([1e-5, 0, -1e-7, 2], [1, 1, 0, 2.5])
    assert seen.max_rel_error == 0.25
    assert seen.max_rel_left_out == 3


def test_ulp_error_is_in_the_narrow_format_at_the_reference():
    assert full([1024, 1], [1027, 1]).max_ulp_error == 3
    assert full([1024, 1], [1032, 1], BF16).max_ulp_error == 1
    assert full([0.0], [2.0**-24]).max_ulp_error == 1


def test_nonfinite_elements_are_left_out():
    seen = full([[1, NAN, 4], [INF, 2, 8]], [[1, 7, 5], [INF, NAN, 8]])
    assert seen.max_rel_error == 0.25
    assert seen.max_rel_left_out == 0
    assert seen.max_ulp_error == 1 / 2.0**-8
    assert seen.worst_row_rel_l2 == pytest.approx(1 / math.sqrt(17))


def test_one_bad_row_shows():
    x = np.ones((1500, 8), np.float32)
    y = x.copy()
    y[700] = 2
    seen = full(x, y)
    assert seen.worst_row_rel_l2 == 1
    assert seen.rel_l2_error == pytest.approx(1 / math.sqrt(1500))


@pytest.mark.parametrize(
    ("reference", "value", "expected"),
    [
        ([3, 4], [3, 5], 0.2),
        ([], [], 0.0),
        ([[], []], [[], []], 0.0),
        ([[0, 0], [0, 0]], [[0, 0], [0, 0]], 0.0),
        ([[0, 0], [0, 0]], [[0, 0], [0, 1]], None),
        ([0, 0], [0, 1], None),
        # A zero row is measured against the root-mean-square row norm, here 5 / sqrt(2).
        ([[0, 0], [3, 4]], [[0, 1], [3, 4]], math.sqrt(2) / 5),
        ([[0, 0], [3, 4]], [[0, 1], [3, 9]], 1.0),
        ([[NAN, INF], [3, 4]], [[1, 2], [3, 4]], 0.0),
    ],
    ids=str,
)
def test_worst_row(reference, value, expected):
    assert worst_row(np.array(reference, np.float32), np.array(value, np.float32)) == (
        None if expected is None else pytest.approx(expected)
    )


def test_worst_row_of_huge_float64_values():
    x = np.array([[1e300, 1.0], [1.0, 1.0]])
    assert worst_row(x, x * [[1, 1], [1, 2]]) == pytest.approx(1 / math.sqrt(2))


@pytest.mark.parametrize(
    ("reference", "value", "expected"),
    [
        ([[1, 2], [2, 1]], [[1, 2], [1, 2]], 0.5),
        ([1, 2, 3], [0, 0, 1], 1.0),
        ([[1, 1]], [[1, 1]], 1.0),
        ([[1, 2]], [[2, 2]], 0.0),
        ([[1, NAN, 2]], [[1, 9, NAN]], 0.0),
        ([[1, NAN, 2]], [[1, 0, 2]], 1.0),
        ([[NAN, NAN]], [[NAN, NAN]], 1.0),
        ([[1, 0]], [[NAN, NAN]], 0.0),
        ([[1, INF]], [[1, INF]], 1.0),
    ],
    ids=str,
)
def test_top1_agreement(reference, value, expected):
    assert top1_agreement(np.array(reference, np.float32), np.array(value, np.float32)) == expected


def test_top1_agreement_of_no_rows():
    assert top1_agreement(np.zeros((0, 5)), np.zeros((0, 5))) is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), False),
        ((1,), False),
        ((2,), True),
        ((3, 1000), True),
        ((3, 100_000), True),
        ((100_001,), False),
        ((5, 0), False),
    ],
    ids=str,
)
def test_looks_like_scores(shape, expected):
    assert looks_like_scores(shape) is expected
    assert (full(np.ones(shape), np.ones(shape)).top1_agreement is not None) is expected


def test_empty_and_rank_0():
    assert full([], []).max_rel_error == 0
    seen = full(4.0, 5.0)
    assert (seen.max_rel_error, seen.worst_row_rel_l2, seen.top1_agreement) == (0.25, 0.25, None)


def test_shapes_must_agree():
    core = full([1], [1])
    with pytest.raises(ValueError, match=r"^reference has shape \(2,\) and value \(3,\); they must be equal$"):
        full_figures(core, np.zeros(2), np.zeros(3), FP16)


def test_batches_combine():
    a = full([[1, 2], [2, 1]], [[1, 2], [1, 2]])
    b = full([[1, 0]], [[1, 1e-9]])
    core = replace(a, count=6)
    seen = combine_full(core, [a, b])
    assert seen.count == 6
    assert seen.max_rel_error == 1
    assert seen.max_rel_left_out == 1
    assert seen.max_ulp_error == a.max_ulp_error
    assert seen.worst_row_rel_l2 == a.worst_row_rel_l2
    assert seen.top1_agreement == pytest.approx(2 / 3)
    assert combine_full(core, [b, a]) == seen
    assert combine_full(core, [a]) == replace(a, count=6)


def test_a_batch_with_an_error_against_zero_makes_the_worst_row_none():
    a, b = full([0, 0], [0, 1]), full([1, 1], [1, 2])
    assert combine_full(b, [a, b]).worst_row_rel_l2 is None


def test_core_only_batches_combine_to_the_core():
    sums = ErrorSums()
    assert combine_full(sums.figures(), [sums.figures()]) == sums.figures()
    assert combine_full(sums.figures(), []) == sums.figures()
