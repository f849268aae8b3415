"""Rows of operators that move, select or order values and never round.

Rounding to nearest is monotone, so selecting by order commutes with it: the largest of the rounded numbers
is the rounded largest number.
"""

from __future__ import annotations

from typing import Final

from converter.types import OpClass, OpPolicy

SHAPING: Final = (
    OpPolicy(
        "Identity",
        OpClass.EXACT,
        "Hands every value on bit for bit, whatever its type.",
        "ONNX schema Identity-25",
    ),
    OpPolicy(
        "Reshape",
        OpClass.EXACT,
        "Gives the same elements another shape.",
        "ONNX schema Reshape-25",
    ),
    OpPolicy(
        "Flatten",
        OpClass.EXACT,
        "Gives the same elements a shape of two dimensions.",
        "ONNX schema Flatten-25",
    ),
    OpPolicy(
        "Squeeze",
        OpClass.EXACT,
        "Drops axes of length one and keeps every element.",
        "ONNX schema Squeeze-25",
    ),
    OpPolicy(
        "Unsqueeze",
        OpClass.EXACT,
        "Inserts axes of length one and keeps every element.",
        "ONNX schema Unsqueeze-25",
    ),
    OpPolicy(
        "Transpose",
        OpClass.EXACT,
        "Permutes axes and copies every element once.",
        "ONNX schema Transpose-25",
    ),
    OpPolicy(
        "Expand",
        OpClass.EXACT,
        "Repeats elements along axes of length one.",
        "ONNX schema Expand-13",
        since=8,
    ),
    OpPolicy(
        "Tile",
        OpClass.EXACT,
        "Repeats the whole tensor along its axes.",
        "ONNX schema Tile-13",
    ),
    OpPolicy(
        "Concat",
        OpClass.EXACT,
        "Joins tensors end to end without touching an element.",
        "ONNX schema Concat-13",
    ),
    OpPolicy(
        "Split",
        OpClass.EXACT,
        "Cuts a tensor into pieces without touching an element.",
        "ONNX schema Split-18",
    ),
    OpPolicy(
        "DepthToSpace",
        OpClass.EXACT,
        "Moves channels into blocks of pixels, a fixed permutation.",
        "ONNX schema DepthToSpace-28",
    ),
    OpPolicy(
        "SpaceToDepth",
        OpClass.EXACT,
        "Moves blocks of pixels into channels, a fixed permutation.",
        "ONNX schema SpaceToDepth-28",
    ),
    OpPolicy(
        "ReverseSequence",
        OpClass.EXACT,
        "Reverses the order of elements along the time axis.",
        "ONNX schema ReverseSequence-28",
        since=10,
    ),
)

SELECTING: Final = (
    OpPolicy(
        "Slice",
        OpClass.EXACT,
        "Copies a range of elements and skips the others.",
        "ONNX schema Slice-13",
    ),
    OpPolicy(
        "Gather",
        OpClass.EXACT,
        "Copies the elements that integer indices name.",
        "ONNX schema Gather-13",
    ),
    OpPolicy(
        "GatherElements",
        OpClass.EXACT,
        "Copies the elements that integer indices name.",
        "ONNX schema GatherElements-13",
        since=11,
    ),
    OpPolicy(
        "GatherND",
        OpClass.EXACT,
        "Copies the slices that integer index tuples name.",
        "ONNX schema GatherND-13",
        since=11,
    ),
    OpPolicy(
        "Compress",
        OpClass.EXACT,
        "Copies the elements whose condition is true.",
        "ONNX schema Compress-28",
        since=9,
    ),
    OpPolicy(
        "Scatter",
        OpClass.EXACT,
        "Overwrites the elements that integer indices name.",
        "ONNX schema Scatter-9",
        since=9,
        until=10,
    ),
    OpPolicy(
        "ScatterElements",
        OpClass.EXACT,
        "Overwrites the elements that integer indices name.",
        "ONNX schema ScatterElements-13",
        since=11,
        until=15,
    ),
    OpPolicy(
        "ScatterElements",
        OpClass.FOLLOW,
        "From opset 16 on the reduction attribute may add, multiply or compare, so the result may be rounded.",
        "ONNX schema ScatterElements-18",
        since=16,
    ),
    OpPolicy(
        "ScatterND",
        OpClass.EXACT,
        "Overwrites the slices that integer index tuples name.",
        "ONNX schema ScatterND-13",
        since=11,
        until=15,
    ),
    OpPolicy(
        "ScatterND",
        OpClass.FOLLOW,
        "From opset 16 on the reduction attribute may add, multiply or compare, so the result may be rounded.",
        "ONNX schema ScatterND-18",
        since=16,
    ),
    OpPolicy(
        "TensorScatter",
        OpClass.EXACT,
        "Writes new entries into a cache and copies the rest.",
        "ONNX schema TensorScatter-24",
        since=24,
    ),
    OpPolicy(
        "Where",
        OpClass.EXACT,
        "Copies one of two operands per element.",
        "ONNX schema Where-16",
        since=9,
        saturate=("X", "Y"),
    ),
    OpPolicy(
        "Trilu",
        OpClass.EXACT,
        "Copies one triangle and writes zeros into the other.",
        "ONNX schema Trilu-14",
        since=14,
    ),
    OpPolicy(
        "Pad",
        OpClass.EXACT,
        "Copies the input and fills the border with a value that is an attribute.",
        "ONNX schema Pad-2",
        until=10,
    ),
    OpPolicy(
        "Pad",
        OpClass.EXACT,
        "Copies the input and fills the border with zeros, copies or a given value.",
        "ONNX schema Pad-25",
        since=11,
        saturate=("constant_value",),
    ),
    OpPolicy(
        "CenterCropPad",
        OpClass.EXACT,
        "Copies the middle and fills the border with zeros.",
        "ONNX schema CenterCropPad-18",
        since=18,
    ),
    OpPolicy(
        "OneHot",
        OpClass.EXACT,
        "Copies one of two given values per element; indices and depth are counts and stay as they are.",
        "ONNX schema OneHot-28",
        since=9,
        keep_wide=("indices", "depth"),
        narrow_vars=("T3",),
    ),
    OpPolicy(
        "Dropout",
        OpClass.EXACT,
        "In inference it returns its input bit for bit.",
        "ONNX schema Dropout-10",
        until=11,
    ),
    OpPolicy(
        "Dropout",
        OpClass.EXACT,
        "In inference it returns its input bit for bit; ratio has a type of its own.",
        "ONNX schema Dropout-22",
        since=12,
        keep_wide=("ratio",),
        narrow_vars=("T",),
    ),
)

ORDERING: Final = (
    OpPolicy(
        "Relu",
        OpClass.EXACT,
        "Selects between its input and zero, and rounding keeps the sign.",
        "ONNX schema Relu-14",
    ),
    OpPolicy(
        "Abs",
        OpClass.EXACT,
        "Clears the sign bit and leaves the magnitude alone.",
        "ONNX schema Abs-13",
    ),
    OpPolicy(
        "Neg",
        OpClass.EXACT,
        "Flips the sign bit and leaves the magnitude alone.",
        "ONNX schema Neg-13",
    ),
    OpPolicy(
        "Sign",
        OpClass.EXACT,
        "Returns minus one, zero or one; only an input that flushes to zero changes its answer.",
        "ONNX schema Sign-13",
        since=9,
    ),
    OpPolicy(
        "Max",
        OpClass.EXACT,
        "Selects the largest operand, and rounding to nearest keeps the order of numbers.",
        "ONNX schema Max-13",
        saturate=("data_0",),
    ),
    OpPolicy(
        "Min",
        OpClass.EXACT,
        "Selects the smallest operand, and rounding to nearest keeps the order of numbers.",
        "ONNX schema Min-13",
        saturate=("data_0",),
    ),
    OpPolicy(
        "ReduceMax",
        OpClass.EXACT,
        "Selects the largest element along axes, and rounding to nearest keeps the order of numbers.",
        "ONNX schema ReduceMax-20",
    ),
    OpPolicy(
        "ReduceMin",
        OpClass.EXACT,
        "Selects the smallest element along axes, and rounding to nearest keeps the order of numbers.",
        "ONNX schema ReduceMin-20",
    ),
    OpPolicy(
        "MaxPool",
        OpClass.EXACT,
        "Selects the largest element of a window; equal elements only make another index possible.",
        "ONNX schema MaxPool-22",
    ),
    OpPolicy(
        "GlobalMaxPool",
        OpClass.EXACT,
        "Selects the largest element of a plane, and rounding to nearest keeps the order of numbers.",
        "ONNX schema GlobalMaxPool-22",
    ),
    OpPolicy(
        "MaxUnpool",
        OpClass.EXACT,
        "Copies each element to the place its index names and fills the rest with zeros.",
        "ONNX schema MaxUnpool-22",
        since=9,
    ),
)

ROWS: Final = SHAPING + SELECTING + ORDERING
