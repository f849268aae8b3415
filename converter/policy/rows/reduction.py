"""Rows of reductions, pooling, running sums and resampling: many terms behind one output element."""

from __future__ import annotations

from typing import Final

from converter.types import Depth, HiddenRange, OpClass, OpPolicy

SUMS: Final = (
    OpPolicy(
        "ReduceSum",
        OpClass.FOLLOW,
        "A wide sum rounds once, but a narrow result must hold absmax times the number of terms.",
        "ONNX schema ReduceSum-13",
        hidden_range=HiddenRange.SUM,
        depth=Depth.AXES,
        accumulate="narrow",
    ),
    OpPolicy(
        "ReduceMean",
        OpClass.FOLLOW,
        "The mean is no larger than its terms, but the sum before the division may leave the range.",
        "ONNX schema ReduceMean-18",
        hidden_range=HiddenRange.SUM,
        depth=Depth.AXES,
        accumulate="narrow",
    ),
    OpPolicy(
        "AveragePool",
        OpClass.FOLLOW,
        "A mean over a window, whose sum before the division is at most absmax times the window.",
        "ONNX schema AveragePool-22",
        hidden_range=HiddenRange.SUM,
        depth=Depth.WINDOW,
    ),
    OpPolicy(
        "GlobalAveragePool",
        OpClass.FOLLOW,
        "A mean over the plane, whose sum before the division is at most absmax times the plane.",
        "ONNX schema GlobalAveragePool-22",
        hidden_range=HiddenRange.SUM,
        depth=Depth.SPATIAL,
    ),
    OpPolicy(
        "Col2Im",
        OpClass.FOLLOW,
        "Each pixel sums the few blocks that cover it, and that sum is the visible output.",
        "ONNX schema Col2Im-18",
        since=18,
    ),
    OpPolicy(
        "Resize",
        OpClass.FOLLOW,
        "Interpolates between neighbours with weights that come from scales, which are FP32 by schema.",
        "ONNX schema Resize-10",
        since=10,
        until=10,
        keep_wide=("scales",),
    ),
    OpPolicy(
        "Resize",
        OpClass.FOLLOW,
        "Interpolates between neighbours with weights from scales and roi, coordinates with types of their own.",
        "ONNX schema Resize-19",
        since=11,
        keep_wide=("roi", "scales"),
        narrow_vars=("T1",),
    ),
    OpPolicy(
        "Upsample",
        OpClass.FOLLOW,
        "Repeats or interpolates between neighbours with scales that are an attribute.",
        "ONNX schema Upsample-7",
        until=8,
    ),
    OpPolicy(
        "Upsample",
        OpClass.FOLLOW,
        "Repeats or interpolates between neighbours with scales that are FP32 by schema.",
        "ONNX schema Upsample-9",
        since=9,
        until=9,
        keep_wide=("scales",),
    ),
    OpPolicy(
        "GridSample",
        OpClass.FOLLOW,
        "Interpolates between neighbours, while the grid holds coordinates and has a type of its own.",
        "ONNX schema GridSample-22",
        since=16,
        keep_wide=("grid",),
        narrow_vars=("T1",),
    ),
)

WIDE: Final = (
    OpPolicy(
        "ReduceL1",
        OpClass.WIDE,
        "Absolute values never cancel, so the result grows with the number of terms.",
        "ONNX schema ReduceL1-18 function body",
        hidden_range=HiddenRange.SUM,
        depth=Depth.AXES,
    ),
    OpPolicy(
        "ReduceL2",
        OpClass.WIDE,
        "The function body squares and sums in the input's type, so the sum overflows while the root looks harmless.",
        "ONNX schema ReduceL2-18 function body",
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.AXES,
    ),
    OpPolicy(
        "ReduceSumSquare",
        OpClass.WIDE,
        "Squares double the binary exponents, and their sum grows with the number of terms.",
        "ONNX schema ReduceSumSquare-18 function body",
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.AXES,
    ),
    OpPolicy(
        "ReduceLogSum",
        OpClass.WIDE,
        "The logarithm hides a sum that may leave the range and is ill-conditioned around one.",
        "condition number 1/|ln x|",
        hidden_range=HiddenRange.SUM,
        depth=Depth.AXES,
    ),
    OpPolicy(
        "ReduceLogSumExp",
        OpClass.WIDE,
        "Sums exponentials before the logarithm; the function body itself computes in double.",
        "ONNX schema ReduceLogSumExp-18 function body",
        hidden_range=HiddenRange.SUM_EXP,
        depth=Depth.AXES,
    ),
    OpPolicy(
        "ReduceProd",
        OpClass.WIDE,
        "The binary exponents of all terms add up, so a product over- or underflows after few of them.",
        "IEEE 754 half range",
        depth=Depth.AXES,
    ),
    OpPolicy(
        "LpPool",
        OpClass.WIDE,
        "Takes a root of summed powers over a window, which overflow while the root looks harmless.",
        "ONNX schema LpPool-22",
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.WINDOW,
    ),
    OpPolicy(
        "GlobalLpPool",
        OpClass.WIDE,
        "Takes a root of summed powers over the plane, which overflow while the root looks harmless.",
        "ONNX schema GlobalLpPool-22",
        hidden_range=HiddenRange.SUM_SQUARE,
        depth=Depth.SPATIAL,
    ),
    OpPolicy(
        "CumSum",
        OpClass.WIDE,
        "Every partial sum is an output, and a 16-bit sum of ones stops growing at its largest exact integer.",
        "ONNX schema CumSum-14",
        since=11,
    ),
    OpPolicy(
        "CumProd",
        OpClass.WIDE,
        "Every partial product is an output, and their binary exponents grow with the position.",
        "ONNX schema CumProd-26",
        since=26,
    ),
)

ROWS: Final = SUMS + WIDE
