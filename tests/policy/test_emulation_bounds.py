"""NARROW and FOLLOW rows: the emulation against float64, within a bound computed from the format.

The emulation rounds the inputs, runs the FP32 kernel and rounds the outputs.  Three things separate it from the
operator in float64 on unrounded inputs (u: unit roundoff of the format, s: its smallest subnormal, v: unit
roundoff of FP32):

1. *Rounded inputs.*  ``|x' - x| <= u|x| + s/2`` per element, passed on by the operator:
   - multilinear of degree d (products, sums of products): at most ``((1+u)^d - 1)`` times the operator on absolute
     values, because every term is a product of d rounded factors;
   - elementwise with slope at most L: ``L (u|x| + s/2)``;
   - any other: ``2 * sum_j |J_ij| (u|x_j| + s/2)`` with the Jacobian J by central differences; the factor of two
     stands for the terms of second order, which are smaller than the first by about u times the curvature.
2. *The FP32 kernel.*  A sum of n terms errs by at most ``n v`` times the sum of their absolute values; n is no
   larger than the largest input.
3. *The rounded output.*  ``u|y| + s/2``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from converter.formats import FP32, NARROW_FORMATS, FloatFormat
from converter.types import OpClass

from .evaluate import (
    float64_reference,
    fp32_kernel,
    round_to,
    rounded_feeds,
    rounded_outputs,
)
from .op_inputs import Case, cases

Array = NDArray[Any]

DEGREES = {
    **dict.fromkeys(("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Mul"), 2),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), 2),
    **dict.fromkeys(("Add", "Sum", "Mean", "ReduceSum", "ReduceMean", "AveragePool", "GlobalAveragePool"), 1),
    **dict.fromkeys(("Col2Im", "Upsample"), 1),
}
"""Multilinear operators whose weights are not negative, so that the operator on absolute values sums their terms."""

SLOPES = {
    "Sigmoid": 0.25,
    **dict.fromkeys(("HardSigmoid", "Tanh", "Softsign", "Atan", "Asinh", "Celu", "LeakyRelu"), 1.0),
    **dict.fromkeys(("Gelu", "FastGelu", "Mish", "Erf"), 1.13),
    **dict.fromkeys(("Swish", "QuickGelu"), 1.1),
    "HardSwish": 1.5,
    "Elu": 2.0,  # the node tests use alpha = 2
    "Selu": 6.0,  # the node tests use alpha = 2 and gamma = 3
}
"""Elementwise operators of one input, with a bound on their slope."""

CASES = [case for case in cases() if case.row.op_class in (OpClass.NARROW, OpClass.FOLLOW)]
JACOBIAN_CASES = 2
"""Smallest cases per row that are checked with a Jacobian, which costs two runs per input element."""


def _chosen() -> list[Case]:
    """All cases with a bound in closed form, and the smallest ones of the other rows."""
    seen: dict[int, int] = {}
    chosen = []
    for case in sorted(CASES, key=lambda c: c.elements):
        closed = case.row.op_type in DEGREES or case.row.op_type in SLOPES
        seen[id(case.row)] = seen.get(id(case.row), 0) + 1
        if closed or seen[id(case.row)] <= JACOBIAN_CASES:
            chosen.append(case)
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Sensitivity:
    """How one output depends on the inputs: error passed on by rounding, and the size of what the kernel sums."""

    passed_on: Callable[[FloatFormat], Array]
    magnitude: Array


def _step(x: Array, fmt: FloatFormat) -> Array:
    """The most that rounding moves a finite number; infinities and NaN do not move."""
    moved = fmt.unit_roundoff * np.abs(x.astype(np.float64)) + fmt.smallest_subnormal / 2
    return np.where(np.isfinite(x), moved, 0.0)


@cache
def sensitivities(case: Case) -> tuple[Sensitivity, ...]:
    if case.row.op_type in DEGREES:
        return _multilinear(case, DEGREES[case.row.op_type])
    if case.row.op_type in SLOPES:
        slope, (x, *_) = SLOPES[case.row.op_type], case.feeds.values()
        return (Sensitivity(lambda fmt: slope * _step(x, fmt), np.maximum(slope, 1) * np.abs(x.astype(np.float64))),)
    return _by_jacobian(case)


def _multilinear(case: Case, degree: int) -> tuple[Sensitivity, ...]:
    absolute = {name: np.abs(x) if x.dtype == np.float32 else x for name, x in case.feeds.items()}
    sums = float64_reference(case)(absolute)
    # each factor may also lose up to s/2 to the subnormals, where the others are at most their largest
    largest = max(float(np.abs(x).max(initial=1.0)) for x in case.feeds.values()) ** (degree - 1)

    def passed_on(total: Array) -> Callable[[FloatFormat], Array]:
        return lambda fmt: (
            ((1 + fmt.unit_roundoff) ** degree - 1) * total + degree * case.longest * largest * fmt.smallest_subnormal
        )

    return tuple(Sensitivity(passed_on(total), total) for total in sums)


def _by_jacobian(case: Case) -> tuple[Sensitivity, ...]:
    run = float64_reference(case)
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in case.feeds.items()}
    outputs = run(wide)
    passed = [{fmt.name: np.zeros(y.shape) for fmt in NARROW_FORMATS.values()} for y in outputs]
    magnitudes = [np.abs(np.nan_to_num(y.astype(np.float64), posinf=0, neginf=0)) for y in outputs]
    for name in case.narrow_inputs():
        steps = {fmt.name: _step(case.feeds[name], fmt).ravel() for fmt in NARROW_FORMATS.values()}
        for position in np.flatnonzero(np.isfinite(case.feeds[name])):
            for index, column in enumerate(_column(run, wide, name, int(position))):
                for key, bound in passed[index].items():
                    bound += 2 * column * steps[key][position]
                magnitudes[index] += column * abs(wide[name].flat[position])
    return tuple(
        Sensitivity(lambda fmt, bounds=bounds: bounds[fmt.name], magnitude)  # type: ignore[misc]
        for bounds, magnitude in zip(passed, magnitudes, strict=True)
    )


def _column(run: Callable[[Any], list[Array]], wide: dict[str, Array], name: str, position: int) -> list[Array]:
    """Absolute slopes of all outputs along one input element, by central differences."""
    width = 1e-6 * max(1.0, abs(float(wide[name].flat[position])))
    made = []
    for sign in (1, -1):
        moved = wide[name].copy()
        moved.flat[position] += sign * width
        made.append(run({**wide, name: moved}))
    with np.errstate(invalid="ignore"):
        slopes = [np.abs(up - down) / (2 * width) for up, down in zip(*made, strict=True)]
    return [np.nan_to_num(slope, nan=0.0, posinf=0.0) for slope in slopes]


def assert_within(actual: Array, expected: Array, bound: Array) -> None:
    """Equal non-finite elements, and finite ones no further apart than the bound."""
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(actual[~finite], expected[~finite].astype(np.float32))
    apart = np.abs(actual[finite].astype(np.float64) - expected[finite])
    excess = apart - np.broadcast_to(bound, expected.shape)[finite]
    assert not (excess > 0).any(), f"off by {apart[excess.argmax()]:.3g}, {excess.max():.3g} too much"


each_case = pytest.mark.parametrize("case", _chosen(), ids=lambda case: f"{case.row.op_type}-{case.name}")
each_format = pytest.mark.parametrize("fmt", NARROW_FORMATS.values(), ids=NARROW_FORMATS.keys())


def float_outputs(case: Case, made: list[Array]) -> list[tuple[int, bool, Array]]:
    """Position, whether narrow, and value of the float outputs."""
    return [
        (position, narrow, x)
        for position, (narrow, x) in enumerate(zip(case.narrow_outputs(), made, strict=True))
        if x.dtype.kind == "f"
    ]


def kernel_error(case: Case, magnitude: Array) -> Array:
    return np.asarray(case.longest * FP32.unit_roundoff * magnitude)


@each_case
@each_format
def test_the_emulation_stays_within_the_rounding_of_inputs_and_outputs(case: Case, fmt: FloatFormat) -> None:
    emulated = rounded_outputs(case, fp32_kernel(case)(rounded_feeds(case, fmt)), fmt)
    reference = float64_reference(case)(case.feeds)
    for position, narrow, expected in float_outputs(case, reference):
        sensitivity = sensitivities(case)[position]
        bound = sensitivity.passed_on(fmt) + kernel_error(case, sensitivity.magnitude)
        if narrow:
            bound = bound + fmt.unit_roundoff * (np.abs(expected) + bound) + fmt.smallest_subnormal / 2
        assert_within(emulated[position], expected, bound)


@each_case
@each_format
def test_on_rounded_inputs_only_the_output_rounding_remains(case: Case, fmt: FloatFormat) -> None:
    feeds = rounded_feeds(case, fmt)
    assert_rounded_once(case, fmt, rounded_outputs(case, fp32_kernel(case)(feeds), fmt))


def assert_rounded_once(case: Case, fmt: FloatFormat, emulated: list[Array]) -> None:
    feeds = rounded_feeds(case, fmt)
    for position, narrow, expected in float_outputs(case, float64_reference(case)(feeds)):
        bound = kernel_error(case, sensitivities(case)[position].magnitude)
        if narrow:
            bound = bound + fmt.unit_roundoff * (np.abs(expected) + bound) + fmt.smallest_subnormal / 2
        assert_within(emulated[position], expected, bound)


def written_case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@each_format
@pytest.mark.parametrize("name", ["FusedMatMul", "Gelu", "test_sigmoid", "test_layer_normalization_2d_axis0"])
def test_dropping_bits_instead_of_rounding_would_fail(name: str, fmt: FloatFormat) -> None:
    """The bounds are tight enough to tell rounding to nearest from truncation, which is twice as wrong."""
    case = written_case(name)
    made = fp32_kernel(case)(rounded_feeds(case, fmt))
    toward_zero = [
        np.where(np.abs(r) > np.abs(x), np.nextafter(r.astype(fmt.dtype), fmt.dtype.type(0)), r)
        for x, r in zip(made, rounded_outputs(case, made, fmt), strict=True)
    ]
    with pytest.raises(AssertionError, match="too much"):
        assert_rounded_once(case, fmt, [x.astype(np.float32) for x in toward_zero])


@each_format
def test_a_narrow_accumulator_would_fail(fmt: FloatFormat) -> None:
    """The bounds tell a wide sum from one that is rounded after every term."""
    case = written_case("FusedMatMul")
    a, b = (rounded_feeds(case, fmt)[name] for name in ("a", "b"))
    total = np.zeros((a.shape[0], b.shape[0]), np.float32)
    for left, right in zip(a.T, b.T, strict=True):
        total = round_to(total + np.outer(left, right), fmt)
    with pytest.raises(AssertionError, match="too much"):
        assert_rounded_once(case, fmt, [round_to(total / 2, fmt)])
