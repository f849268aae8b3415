"""Rows of normalisations: statistics first, then one scale and shift.

What matters is where the squares are summed.  An operator whose schema has a ``stash_type`` computes its
statistics in FP32 whatever its input, and follows; one that has none may square in 16 bits, and stays wide.
"""

from __future__ import annotations

from typing import Final

from converter.types import Depth, HiddenRange, OpClass, OpPolicy

ROWS: Final = (
    OpPolicy(
        "BatchNormalization",
        OpClass.FOLLOW,
        "In inference an affine map per channel; mean and variance share the type of X and narrow with it.",
        "ONNX schema BatchNormalization-9",
        until=13,
        nonzero=("var",),
    ),
    OpPolicy(
        "BatchNormalization",
        OpClass.FOLLOW,
        "In inference an affine map per channel, whose running statistics have a type of their own and stay FP32.",
        "ONNX schema BatchNormalization-14",
        since=14,
        until=14,
        keep_wide=("input_mean", "input_var"),
        narrow_vars=("T",),
    ),
    OpPolicy(
        "BatchNormalization",
        OpClass.FOLLOW,
        "In inference an affine map per channel, whose running statistics have a type of their own and stay FP32.",
        "ONNX schema BatchNormalization-15",
        since=15,
        keep_wide=("input_mean", "input_var"),
        narrow_vars=("T", "T1"),
    ),
    OpPolicy(
        "LayerNormalization",
        OpClass.FOLLOW,
        "Mean and variance are computed in stash_type, FP32 by default, and only the scaled result is rounded.",
        "ONNX schema LayerNormalization-17 function body",
        since=17,
        depth=Depth.LAST,
        narrow_vars=("T",),
    ),
    OpPolicy(
        "RMSNormalization",
        OpClass.FOLLOW,
        "The mean square is computed in stash_type, FP32 by default, and only the scaled result is rounded.",
        "ONNX schema RMSNormalization-23 function body",
        since=23,
        depth=Depth.LAST,
        narrow_vars=("T", "V"),
    ),
    OpPolicy(
        "SimplifiedLayerNormalization",
        OpClass.FOLLOW,
        "ONNX Runtime's name for RMSNormalization, with the same stash_type for the mean square.",
        "ONNX Runtime 1.32 schema",
        depth=Depth.LAST,
        narrow_vars=("T", "V"),
    ),
    OpPolicy(
        "GroupNormalization",
        OpClass.WIDE,
        "Before opset 21 there is no stash_type and the function body squares in the type of X.",
        "ONNX schema GroupNormalization-18 function body",
        since=18,
        until=20,
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.SPATIAL,
    ),
    OpPolicy(
        "GroupNormalization",
        OpClass.FOLLOW,
        "Mean and variance are computed in stash_type, FP32 by default, and only the scaled result is rounded.",
        "ONNX schema GroupNormalization-21 function body",
        since=21,
        depth=Depth.SPATIAL,
    ),
    OpPolicy(
        "InstanceNormalization",
        OpClass.WIDE,
        "Sums squares over the whole plane without a stash_type, and in FP16 the square of 256 is already infinite.",
        "ONNX schema InstanceNormalization-22; IEEE 754 half range",
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.SPATIAL,
    ),
    OpPolicy(
        "MeanVarianceNormalization",
        OpClass.WIDE,
        "Its body subtracts squared means from mean squares and adds an epsilon that FP16 rounds to zero.",
        "ONNX schema MeanVarianceNormalization-13 function body",
        since=9,
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.AXES,
    ),
    OpPolicy(
        "LpNormalization",
        OpClass.WIDE,
        "Divides by a root of summed squares; their overflow gives rows of zeros rather than NaN.",
        "ONNX schema LpNormalization-22; IEEE 754 half range",
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.LAST,
    ),
    OpPolicy(
        "LRN",
        OpClass.WIDE,
        "Squares its input and raises a sum over neighbouring channels to a power, all in one type.",
        "ONNX schema LRN-13",
        hidden_range=HiddenRange.SQUARE,
    ),
    OpPolicy(
        "Softmax",
        OpClass.WIDE,
        "Exponentials turn the absolute rounding of a score into a relative error, and small terms of a row vanish.",
        "ONNX schema Softmax-13 function body",
        depth=Depth.LAST,
    ),
    OpPolicy(
        "LogSoftmax",
        OpClass.WIDE,
        "Subtracts the logarithm of a long sum from scores of its own size, where cancellation exposes rounding.",
        "ONNX schema LogSoftmax-13 function body",
        depth=Depth.LAST,
    ),
)
