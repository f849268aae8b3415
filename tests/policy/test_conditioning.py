"""The figures that reasons and sources quote: condition numbers, slopes and the ranges that overflow inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from converter.formats import BF16, FP16, FP32, NARROW_FORMATS, FloatFormat

from .evaluate import round_to

Array = NDArray[Any]
Function = Callable[[Array], Array]

WELL_CONDITIONED: dict[str, tuple[Function, Function, float]] = {
    "Tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2, 1.0),
    "Atan": (np.arctan, lambda x: 1 / (1 + x * x), 1.0),
    "Asinh": (np.arcsinh, lambda x: 1 / np.sqrt(1 + x * x), 1.0),
    "Softsign": (lambda x: x / (1 + np.abs(x)), lambda x: 1 / (1 + np.abs(x)) ** 2, 1.0),
    "Sqrt": (lambda x: np.sqrt(np.abs(x)), lambda x: np.sign(x) / (2 * np.sqrt(np.abs(x))), 0.5),
}
"""Operator: function, derivative, largest condition number."""


@pytest.mark.parametrize("op_type", WELL_CONDITIONED)
def test_condition_numbers_of_following_operators(op_type: str) -> None:
    function, derivative, largest = WELL_CONDITIONED[op_type]
    magnitudes = np.geomspace(1e-6, 300, 2000)
    x = np.concatenate([-magnitudes, magnitudes])
    assert (np.abs(x * derivative(x) / function(x)) <= largest + 1e-9).all()


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


SLOPES: dict[str, tuple[Function, float]] = {
    "Sigmoid": (_sigmoid, 0.25),
    "Gelu": (_gelu, 1.13),
    "Swish": (lambda x: x * _sigmoid(x), 1.1),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 1.5),
    "Selu": (lambda x: 1.0507 * np.where(x > 0, x, 1.67326 * np.expm1(x)), 2.0),
}
"""Operator: function, largest slope."""


@pytest.mark.parametrize("op_type", SLOPES)
def test_slopes_of_following_operators(op_type: str) -> None:
    function, largest = SLOPES[op_type]
    x = np.linspace(-20, 20, 100_001)
    steps = np.abs(np.diff(function(x)) / np.diff(x))
    assert steps.max() <= largest
    assert steps.max() > 0.85 * largest


AMPLIFIED: dict[str, tuple[Function, float]] = {"Exp": (np.exp, 10.3), "Log": (np.log, 1.003)}
"""Operator: function, an input of ordinary size."""


@pytest.mark.parametrize("op_type", AMPLIFIED)
def test_wide_operators_amplify_rounding(op_type: str) -> None:
    function, x = AMPLIFIED[op_type]
    rounded = float(round_to(np.array([x], np.float32), FP16)[0])
    assert _relative(function, rounded, x) > 5 * abs(rounded - x) / x


LOST: dict[str, tuple[Function, float]] = {
    "Sin": (np.sin, 100.03),
    "Tan": (np.tan, 1.5701),
    "Acos": (np.arccos, 0.99988),
    "Atanh": (np.arctanh, 0.9997),
}
"""Operator: function, an input of ordinary size."""


@pytest.mark.parametrize("op_type", LOST)
def test_wide_operators_lose_a_percent_to_one_rounding(op_type: str) -> None:
    function, x = LOST[op_type]
    rounded = float(round_to(np.array([x], np.float32), FP16)[0])
    assert _relative(function, rounded, x) > 0.01


def _relative(function: Function, rounded: float, x: float) -> float:
    moved, right = function(np.array([rounded, x]))
    return float(abs(moved - right) / abs(right))


@pytest.mark.parametrize("fmt", NARROW_FORMATS.values(), ids=NARROW_FORMATS.keys())
def test_products_of_narrow_numbers_are_exact_in_fp32(fmt: FloatFormat) -> None:
    """Every pair of significands: why matrix products are NARROW."""
    significands = np.arange(2**fmt.mantissa_bits, 2 ** (fmt.mantissa_bits + 1), dtype=np.float32)
    factors = significands * np.float32(2.0**-fmt.mantissa_bits)
    np.testing.assert_array_equal(factors, round_to(factors, fmt))
    product = np.multiply.outer(factors, factors)
    assert (product == np.multiply.outer(factors.astype(np.float64), factors.astype(np.float64))).all()


@pytest.mark.parametrize("fmt", NARROW_FORMATS.values(), ids=NARROW_FORMATS.keys())
def test_a_running_sum_of_ones_stops(fmt: FloatFormat) -> None:
    """Why CumSum and Range are WIDE."""
    largest = np.array([fmt.largest_exact_integer], np.float32)
    assert round_to(largest + 1, fmt) == largest
    assert round_to(largest - 1, fmt) == largest - 1


def test_what_overflows_in_fp16_and_not_in_bf16() -> None:
    with np.errstate(over="ignore"):
        square = np.array([256.0**2], np.float32)
        exponential = np.exp(np.array([11.1], np.float32))
        reciprocal = 1 / np.array([FP16.smallest_normal / 8], np.float32)
    for hidden in (square, exponential, reciprocal):
        assert np.isinf(round_to(hidden, FP16))
        assert np.isfinite(round_to(hidden, BF16))


def test_an_epsilon_of_1e_9_is_zero_in_fp16() -> None:
    """Why MeanVarianceNormalization is WIDE."""
    assert round_to(np.array([1e-9], np.float32), FP16) == 0
    assert FP32.smallest_normal < 1e-9
