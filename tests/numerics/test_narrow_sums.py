"""Narrow accumulation: named stops, order, shapes, and the figures of a dot product of length 4096."""

from __future__ import annotations

import math

import numpy as np
import pytest

from converter.formats import BF16, FP16
from converter.numerics.error_sums import relative_l2
from converter.numerics.narrow_sums import narrow_dot, narrow_sum
from converter.numerics.rounding import PROFILES, from_storage, round_to, round_wide


def decibels(reference: np.ndarray, value: np.ndarray) -> float:
    error = relative_l2(reference, value)
    assert error
    return -20 * math.log10(error)


def test_a_running_bf16_sum_of_ones_stops_at_256():
    assert narrow_sum(np.ones(1000, np.float32), 0, BF16) == 256


def test_a_running_fp16_sum_of_ones_stops_at_2048():
    assert narrow_sum(np.ones(3000, np.float32), 0, FP16) == 2048


def test_terms_are_added_in_order():
    x = np.array([2048, 1, 1, -2048], np.float32)
    assert narrow_sum(x, 0, FP16) == 0
    assert narrow_sum(x[[1, 2, 0, 3]].copy(), 0, FP16) == 2


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
def test_each_addition_rounds_the_exact_sum_once(fmt):
    patterns = np.random.default_rng(0).integers(0, 2**16, (2, 200_000)).astype(np.uint16)
    pairs = from_storage(patterns.view(fmt.dtype))
    pairs = pairs[:, np.isfinite(pairs).all(axis=0)]
    assert (narrow_sum(pairs, 0, fmt) == round_wide(pairs[0].astype(np.float64) + pairs[1], fmt)).all()


def test_several_axes_are_summed_row_major():
    x = round_to(np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32), BF16)
    expected = [narrow_sum(x[:, i, :].reshape(-1), 0, BF16) for i in range(4)]
    assert narrow_sum(x, (0, 2), BF16).tolist() == [float(e) for e in expected]
    assert narrow_sum(x, -1, BF16).shape == (3, 4)
    assert narrow_sum(x, (0, 1, 2), BF16).shape == ()


def test_empty_axes():
    assert narrow_sum(np.empty((2, 0), np.float32), 1, FP16).tolist() == [0, 0]
    assert narrow_sum(np.empty((0, 2), np.float32), 1, FP16).shape == (0,)


def test_partial_sums_overflow_under_ieee_and_saturate_under_ascend():
    x = np.array([60000, 60000, -60000], np.float32)
    assert narrow_sum(x, 0, FP16) == np.inf
    assert narrow_sum(x, 0, FP16, PROFILES["ascend"]) == 65504 - 60000


@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((3, 5), (5, 4)), ((2, 1, 3, 5), (7, 5, 4)), ((3, 0), (0, 4))],
    ids=str,
)
def test_shapes_are_those_of_matmul(left, right):
    # Small integers: every product and every partial sum is exact, so the result is the exact one.
    generator = np.random.default_rng(0)
    a = generator.integers(-3, 4, left).astype(np.float32)
    b = generator.integers(-3, 4, right).astype(np.float32)
    result = narrow_dot(a, b, FP16)
    assert result.shape == np.matmul(a, b).shape
    assert (result == np.matmul(a, b)).all()


def test_products_are_rounded_too():
    a = np.array([1 + FP16.eps], np.float32)
    assert narrow_dot(a, a, FP16) == 1 + 2 * FP16.eps


def test_inner_sizes_must_agree():
    with pytest.raises(ValueError, match=r"^narrow_dot needs equal inner sizes and got shapes \(2, 3\) and \(4, 5\)$"):
        narrow_dot(np.zeros((2, 3), np.float32), np.zeros((4, 5), np.float32), FP16)


@pytest.mark.parametrize(("fmt", "wide", "narrow"), [(FP16, 68.9, 40.5), (BF16, 51.0, 23.1)], ids=["fp16", "bf16"])
def test_dot_products_of_length_4096(fmt, wide, narrow):
    # 4096 dot products, so the estimate of an error's mean square is good to about 3 %, a fraction of a decibel.
    generator = np.random.default_rng(5)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((64, 4096), (4096, 64)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    x, y = round_to(a, fmt), round_to(b, fmt)
    assert decibels(exact, round_to(x @ y, fmt)) == pytest.approx(wide, abs=1.5)
    assert decibels(exact, narrow_dot(x, y, fmt)) == pytest.approx(narrow, abs=1.5)
