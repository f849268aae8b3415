"""Rows of matrix products, convolutions, attention and recurrent cells: where a 16-bit format pays."""

from __future__ import annotations

from typing import Final

from converter.types import Depth, OpClass, OpPolicy

ROWS: Final = (
    OpPolicy(
        "MatMul",
        OpClass.NARROW,
        "Significands of two narrow numbers multiply exactly in FP32, so a wide sum rounds only operands and result.",
        "ONNX schema MatMul-13",
        depth=Depth.INNER,
        accumulate="narrow",
    ),
    OpPolicy(
        "Gemm",
        OpClass.NARROW,
        "Products are exact in FP32 and alpha, beta and C join the wide sum before the one rounding of the result.",
        "ONNX schema Gemm-13",
        depth=Depth.INNER,
        accumulate="narrow",
    ),
    OpPolicy(
        "Einsum",
        OpClass.NARROW,
        "A contraction is a matrix product with named axes, so its products are exact in a wide sum.",
        "ONNX schema Einsum-28",
        since=12,
        depth=Depth.INNER,
    ),
    OpPolicy(
        "Conv",
        OpClass.NARROW,
        "Each output sums channels times kernel in a wide accumulator, where products of 16-bit numbers are exact.",
        "ONNX schema Conv-22",
        depth=Depth.KERNEL,
    ),
    OpPolicy(
        "ConvTranspose",
        OpClass.NARROW,
        "Scatters exact products as Conv gathers them, and an output sums at most channels times kernel of them.",
        "ONNX schema ConvTranspose-22",
        depth=Depth.KERNEL,
    ),
    OpPolicy(
        "DeformConv",
        OpClass.NARROW,
        "Offsets are distances from the kernel grid, so narrowing one moves its sample by at most eps/2 of it.",
        "ONNX schema DeformConv-22",
        since=19,
        depth=Depth.KERNEL,
    ),
    OpPolicy(
        "CausalConvWithState",
        OpClass.NARROW,
        "A depthwise convolution sums few exact products, and its state only carries past inputs on.",
        "ONNX schema CausalConvWithState-27",
        since=27,
        depth=Depth.KERNEL,
    ),
    OpPolicy(
        "Attention",
        OpClass.NARROW,
        "Q and K are scaled before their product, both products sum wide, and kernels want the mask in Q's type.",
        "ONNX schema Attention-25; ONNX Runtime 1.32 CPU kernel types",
        since=23,
        saturate=("attn_mask",),
        depth=Depth.INNER,
        narrow_vars=("T1", "T2", "U"),
    ),
    OpPolicy(
        "LinearAttention",
        OpClass.NARROW,
        "Queries, keys and values feed products, while the state, a sum over the whole sequence, keeps its own type.",
        "ONNX schema LinearAttention-27",
        since=27,
        keep_wide=("past_state",),
        depth=Depth.INNER,
        narrow_vars=("T",),
    ),
    OpPolicy(
        "LSTM",
        OpClass.NARROW,
        "Gates are wide sums behind Sigmoid and Tanh, which bound them and have slopes of at most one.",
        "ONNX schema LSTM-22",
        depth=Depth.HIDDEN,
    ),
    OpPolicy(
        "GRU",
        OpClass.NARROW,
        "The new state is a convex mixture of a bounded candidate and the old state, which does not amplify rounding.",
        "ONNX schema GRU-22",
        depth=Depth.HIDDEN,
    ),
    OpPolicy(
        "RNN",
        OpClass.NARROW,
        "The state is a wide sum behind Tanh, unless the model names another function, and rounds once per step.",
        "ONNX schema RNN-22",
        depth=Depth.HIDDEN,
    ),
)
