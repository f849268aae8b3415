"""Elementwise NARROW and FOLLOW rows at the edges of the format.

The emulation on numbers around the largest finite one, the smallest normal and subnormal ones, zero, NaN and the
infinities has to be the float64 result on the rounded inputs, rounded once.  FP32 kernels err by a few units of
FP32, which may move a result across a rounding boundary: finite results may differ by one rounding more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from converter.formats import BF16, FP32, NARROW_FORMATS, FloatFormat
from converter.policy.lookup import policy_for
from converter.types import Depth, HiddenRange

from .evaluate import float64_reference, fp32_kernel, round_to, rounded_feeds, rounded_outputs
from .op_inputs import Case

Array = NDArray[Any]

UNARY = {
    **dict.fromkeys(("Sqrt", "Sigmoid", "HardSigmoid", "Tanh", "Softsign", "Atan", "Elu", "Selu", "LeakyRelu"), 22),
    **dict.fromkeys(("Erf", "Asinh", "HardSwish", "Celu", "Mish", "Gelu"), 22),
    "Swish": 24,
}
BINARY = {**dict.fromkeys(("Add", "Sub", "Mul", "Div", "PRelu"), 22), "Sum": 22, "Mean": 22}
KERNEL_UNITS = 8
"""Units of FP32 that a kernel may err by, relative to its result."""

DIFFERENCE_WITH_ONE = {"Elu": 1.0, "Selu": 2.0, "Celu": 1.0}
"""ONNX Runtime computes exp(x) - 1, which errs by a unit of one times the gain however small the result is."""


def edges(fmt: FloatFormat) -> Array:
    """Magnitudes at which the format changes its behaviour, with both signs, and NaN."""
    fits = np.nextafter(np.float32(fmt.overflow_threshold), np.float32(0))
    magnitudes = [
        0.0,
        fmt.smallest_subnormal / 2,  # a tie, which goes to zero
        fmt.smallest_subnormal * 0.75,
        fmt.smallest_subnormal,
        fmt.smallest_normal - fmt.smallest_subnormal,
        fmt.smallest_normal,
        1 - fmt.eps / 2,
        1.0,
        1 + fmt.eps / 2,  # a tie, which goes to the even neighbour
        np.sqrt(fmt.max_finite),
        fmt.max_finite / 2,
        fmt.max_finite,
        float(fits),
        min(fmt.overflow_threshold, FP32.max_finite),
        np.inf,
    ]
    return np.array([*magnitudes, *(-m for m in magnitudes), np.nan], np.float32)


def edge_case(op_type: str, opset: int, inputs: list[Array]) -> Case:
    names = [f"x{position}" for position in range(len(inputs))]
    shape = [inputs[0].size]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, ["y"])],
        "edges",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    row = policy_for("", op_type, opset)
    assert row is not None
    return Case("edges", row, model, dict(zip(names, inputs, strict=True)))


def assert_rounded_once(case: Case, fmt: FloatFormat) -> None:
    feeds = rounded_feeds(case, fmt)
    (emulated,) = rounded_outputs(case, fp32_kernel(case)(feeds), fmt)
    (wide,) = float64_reference(case)(feeds)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(wide) + DIFFERENCE_WITH_ONE.get(case.row.op_type, 0.0) / KERNEL_UNITS
        kernel = np.where(np.isfinite(wide), KERNEL_UNITS * FP32.unit_roundoff * size, 0.0)
        low, high = (round_to((wide + side * kernel).astype(np.float32), fmt) for side in (-1, 1))
    between = (low <= emulated) & (emulated <= high)
    right = between | (np.isnan(emulated) & np.isnan(wide))
    wrong = [
        (*(float(x[i]) for x in feeds.values()), float(emulated[i]), float(wide[i])) for i in np.flatnonzero(~right)
    ]
    assert wrong == [], "inputs, emulated, float64"


COMPARABLE: dict[str, Callable[[Array, Array], Array]] = {
    # the specification returns x where it is not negative; ONNX's reference multiplies zero by the slope
    "PRelu": lambda x, slope: (x != 0) | np.isfinite(slope),
    # the sum inside may pass even FP32's range, which is the hidden range of the row
    "Mean": lambda a, b: np.abs(a.astype(np.float64)) + np.abs(b) <= FP32.max_finite,
}
"""Pairs of operands at which the emulation and the reference mean the same, where that is not everywhere."""

each_format = pytest.mark.parametrize("fmt", NARROW_FORMATS.values(), ids=NARROW_FORMATS.keys())


@pytest.mark.parametrize("op_type", UNARY)
@each_format
def test_one_operand(op_type: str, fmt: FloatFormat) -> None:
    assert_rounded_once(edge_case(op_type, UNARY[op_type], [edges(fmt)]), fmt)


@pytest.mark.parametrize("op_type", BINARY)
@each_format
def test_two_operands(op_type: str, fmt: FloatFormat) -> None:
    pairs = np.array(list(product(edges(fmt), edges(fmt))), np.float32)
    if op_type in COMPARABLE:
        pairs = pairs[COMPARABLE[op_type](*round_to(pairs, fmt).T)]
    assert_rounded_once(edge_case(op_type, BINARY[op_type], [pairs[:, 0].copy(), pairs[:, 1].copy()]), fmt)


def test_the_hidden_sum_of_mean_leaves_the_range() -> None:
    """Two numbers of BF16 whose mean fits and whose sum does not, even in FP32: what the row's hidden range says."""
    largest = np.array([BF16.max_finite], np.float32)
    case = edge_case("Mean", 22, [largest, largest])
    (made,) = fp32_kernel(case)(case.feeds)
    assert np.isinf(made)
    assert (case.row.hidden_range, case.row.depth) == (HiddenRange.SUM, Depth.INPUTS)
