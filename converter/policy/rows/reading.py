"""Rows of operators that read, make or hand on values without computing: comparisons, sources, control flow.

The wide ones answer with an index, a level or a bit pattern, which a rounding changes by a whole step.
"""

from __future__ import annotations

from typing import Final

from converter.types import OpClass, OpPolicy

READERS: Final = (
    OpPolicy(
        "Equal",
        OpClass.EXACT,
        "Compares without rounding; operands that differ by less than a rounding compare as equal.",
        "ONNX schema Equal-19",
        narrow_vars=("T",),
    ),
    OpPolicy(
        "Greater",
        OpClass.EXACT,
        "Compares without rounding, and rounding never reverses an order, though it may turn it into a tie.",
        "ONNX schema Greater-13",
        narrow_vars=("T",),
    ),
    OpPolicy(
        "Less",
        OpClass.EXACT,
        "Compares without rounding, and rounding never reverses an order, though it may turn it into a tie.",
        "ONNX schema Less-13",
        narrow_vars=("T",),
    ),
    OpPolicy(
        "GreaterOrEqual",
        OpClass.EXACT,
        "Compares without rounding, and rounding never reverses an order, though it may turn it into a tie.",
        "ONNX schema GreaterOrEqual-16",
        since=12,
        narrow_vars=("T",),
    ),
    OpPolicy(
        "LessOrEqual",
        OpClass.EXACT,
        "Compares without rounding, and rounding never reverses an order, though it may turn it into a tie.",
        "ONNX schema LessOrEqual-16",
        since=12,
        narrow_vars=("T",),
    ),
    OpPolicy(
        "IsNaN",
        OpClass.EXACT,
        "Looks for NaN, which rounding neither makes nor removes.",
        "ONNX schema IsNaN-20",
        since=9,
        narrow_vars=("T1",),
    ),
    OpPolicy(
        "IsInf",
        OpClass.EXACT,
        "Looks for infinities, which are kept; those that rounding could make have a clamp in front.",
        "ONNX schema IsInf-20",
        since=10,
        narrow_vars=("T1",),
    ),
    OpPolicy(
        "NonZero",
        OpClass.EXACT,
        "Asks each stored element whether it is zero, and narrowing does not change a value stored narrow.",
        "ONNX schema NonZero-13",
        since=9,
        narrow_vars=("T",),
    ),
    OpPolicy(
        "Shape",
        OpClass.EXACT,
        "Reads the shape and no element.",
        "ONNX schema Shape-25",
        narrow_vars=("T",),
    ),
    OpPolicy(
        "Size",
        OpClass.EXACT,
        "Reads the number of elements and no element.",
        "ONNX schema Size-25",
        narrow_vars=("T",),
    ),
)

SOURCES: Final = (
    OpPolicy(
        "Constant",
        OpClass.EXACT,
        "Holds a value that is rounded once when it is stored, like an initializer.",
        "ONNX schema Constant-25",
    ),
    OpPolicy(
        "ConstantOfShape",
        OpClass.EXACT,
        "Repeats one value that is rounded once when it is stored.",
        "ONNX schema ConstantOfShape-25",
        since=9,
    ),
    OpPolicy(
        "EyeLike",
        OpClass.EXACT,
        "Writes zeros and ones and reads no element of its input, only the shape.",
        "ONNX schema EyeLike-22",
        since=9,
        narrow_vars=("T1", "T2"),
    ),
    OpPolicy(
        "Cast",
        OpClass.EXACT,
        "Changes the type alone; its float output is decided like any other value.",
        "ONNX schema Cast-28",
        narrow_vars=("T1", "T2"),
    ),
    OpPolicy(
        "CastLike",
        OpClass.EXACT,
        "Changes the type alone; its float output and the target are decided like any other value.",
        "ONNX schema CastLike-25",
        since=15,
        narrow_vars=("T1", "T2"),
    ),
)

CONTROL: Final = (
    OpPolicy(
        "If",
        OpClass.EXACT,
        "Hands on what a branch gives; the nodes of both branches decide for themselves.",
        "ONNX schema If-25",
    ),
    OpPolicy(
        "Loop",
        OpClass.EXACT,
        "Hands on carried and stacked values; the nodes of the body decide for themselves.",
        "ONNX schema Loop-25",
    ),
    OpPolicy(
        "Scan",
        OpClass.EXACT,
        "Hands on states and stacked slices; the nodes of the body decide for themselves.",
        "ONNX schema Scan-25",
        since=8,
    ),
    OpPolicy(
        "SequenceMap",
        OpClass.WIDE,
        "Takes and gives sequences, which have one element type; the nodes of the body decide for themselves.",
        "ONNX schema SequenceMap-17",
        since=17,
    ),
)

WIDE: Final = (
    OpPolicy(
        "ArgMax",
        OpClass.WIDE,
        "Numbers that become equal in narrowing tie, and the first of them wins whatever their order was.",
        "ONNX schema ArgMax-13",
    ),
    OpPolicy(
        "ArgMin",
        OpClass.WIDE,
        "Numbers that become equal in narrowing tie, and the first of them wins whatever their order was.",
        "ONNX schema ArgMin-13",
    ),
    OpPolicy(
        "TopK",
        OpClass.WIDE,
        "Numbers that become equal in narrowing tie, which changes indices and with them all that is gathered.",
        "ONNX schema TopK-24",
    ),
    OpPolicy(
        "Hardmax",
        OpClass.WIDE,
        "Writes a one where the largest element stands, which a tie made by rounding moves elsewhere.",
        "ONNX schema Hardmax-13",
    ),
    OpPolicy(
        "Unique",
        OpClass.WIDE,
        "Distinct numbers that round to the same one merge, which changes the length of the result.",
        "ONNX schema Unique-28",
        since=11,
    ),
    OpPolicy(
        "Range",
        OpClass.WIDE,
        "Counts in steps, and 16-bit formats have no odd integers above their largest exact one.",
        "ONNX schema Range-27",
        since=11,
    ),
    OpPolicy(
        "BitCast",
        OpClass.WIDE,
        "Reads the bit pattern of an element, whose width is part of its meaning.",
        "ONNX schema BitCast-26",
        since=26,
    ),
    OpPolicy(
        "QuantizeLinear",
        OpClass.WIDE,
        "A rounding of x or of its scale moves values across a step and so by a whole level.",
        "ONNX schema QuantizeLinear-28",
        since=10,
    ),
    OpPolicy(
        "DequantizeLinear",
        OpClass.WIDE,
        "A rounded scale changes every value of its block, and FP16 scales are legal from opset 19 only.",
        "ONNX schema DequantizeLinear-28",
        since=10,
    ),
)

ROWS: Final = READERS + SOURCES + CONTROL + WIDE
