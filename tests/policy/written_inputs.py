"""Graphs for what ONNX's node tests leave out: superseded opsets, and contributed operators with a CPU kernel.

A float64 reference stands beside a graph that ``onnx.reference`` does not know at that opset.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erf, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'

GRAPHS = {
    "Clip-6": """
        <ir_version: 8, opset_import: ["" : 7]>
        clip (float[6] x) => (float[6] y) { y = Clip <min = -1.5, max = 2.0> (x) }""",
    "Pad-2": """
        <ir_version: 8, opset_import: ["" : 7]>
        pad (float[2, 3] x) => (float[3, 5] y) { y = Pad <pads = [0, 1, 1, 1], value = 0.5> (x) }""",
    "Resize-10": """
        <ir_version: 8, opset_import: ["" : 10]>
        resize (float[1, 1, 3, 3] x, float[4] scales) => (float[1, 1, 6, 6] y) {
            y = Resize <mode = "linear"> (x, scales) }""",
    "Upsample-7": """
        <ir_version: 8, opset_import: ["" : 7]>
        upsample (float[1, 1, 3, 3] x) => (float[1, 1, 6, 6] y) {
            y = Upsample <mode = "nearest", scales = [1.0, 1.0, 2.0, 2.0]> (x) }""",
    "BatchNormalization-9": """
        <ir_version: 8, opset_import: ["" : 9]>
        norm (float[2, 3, 4] x, float[3] scale, float[3] b, float[3] mean, float[3] var) => (float[2, 3, 4] y) {
            y = BatchNormalization (x, scale, b, mean, var) }""",
    "BatchNormalization-14": """
        <ir_version: 8, opset_import: ["" : 14]>
        norm (float[2, 3, 4] x, float[3] scale, float[3] b, float[3] mean, float[3] var) => (float[2, 3, 4] y) {
            y = BatchNormalization (x, scale, b, mean, var) }""",
    "ScatterElements-11": """
        <ir_version: 8, opset_import: ["" : 11]>
        scatter (float[3, 3] x, int64[1, 2] rows, float[1, 2] updates) => (float[3, 3] y) {
            y = ScatterElements (x, rows, updates) }""",
    "ScatterND-11": """
        <ir_version: 8, opset_import: ["" : 11]>
        scatter (float[3, 3] x, int64[2, 1] rows, float[2, 3] updates) => (float[3, 3] y) {
            y = ScatterND (x, rows, updates) }""",
    "Dropout-10": """
        <ir_version: 8, opset_import: ["" : 10]>
        dropout (float[3, 3] x) => (float[3, 3] y) { y = Dropout <ratio = 0.25> (x) }""",
    "Erf": """
        <ir_version: 8, opset_import: ["" : 13]>
        error (float[50] x) => (float[50] y) { y = Erf (x) }""",
    "Mish": """
        <ir_version: 8, opset_import: ["" : 18]>
        mish (float[50] x) => (float[50] y) { y = Mish (x) }""",
    "Celu": """
        <ir_version: 8, opset_import: ["" : 12]>
        celu (float[50] x) => (float[50] y) { y = Celu (x) }""",
    "Trilu-14": """
        <ir_version: 8, opset_import: ["" : 14]>
        trilu (float[3, 4] x) => (float[3, 4] y) { y = Trilu (x) }""",
    "Equal": """
        <ir_version: 8, opset_import: ["" : 13]>
        equal (float[3, 4] a, float[3, 4] b) => (bool[3, 4] y) { y = Equal (a, b) }""",
    "NonZero": """
        <ir_version: 8, opset_import: ["" : 13]>
        nonzero (float[3, 4] x) => (int64[2, n] y) { y = NonZero (x) }""",
    "TransposeMatMul": f"""{_HEAD}
        fused (float[3, 40] a, float[5, 40] b) => (float[3, 5] y) {{
            y = com.microsoft.TransposeMatMul <transB = 1> (a, b) }}""",
    "MultiHeadAttention": f"""{_HEAD}
        attend (float[1, 5, 8] q, float[1, 6, 8] k, float[1, 6, 8] v) => (float[1, 5, 8] y) {{
            y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }}""",
    "ExpandDims": f"""{_HEAD}
        expand (float[3, 4] x, int32[1] axis) => (float[3, 1, 4] y) {{ y = com.microsoft.ExpandDims (x, axis) }}""",
    "Pad": f"""{_HEAD}
        pad (float[2, 3] x, int64[4] pads) => (float[3, 6] y) {{ y = com.microsoft.Pad (x, pads) }}""",
    "FusedMatMul": f"""{_HEAD}
        fused (float[3, 40] a, float[5, 40] b) => (float[3, 5] y) {{
            y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (a, b) }}""",
    "FusedGemm": f"""{_HEAD}
        fused (float[3, 40] a, float[40, 5] b, float[5] c) => (float[3, 5] y) {{
            y = com.microsoft.FusedGemm <activation = "Relu"> (a, b, c) }}""",
    "FusedConv": f"""{_HEAD}
        fused (float[1, 2, 5, 5] x, float[3, 2, 3, 3] w, float[3] b) => (float[1, 3, 3, 3] y) {{
            y = com.microsoft.FusedConv <activation = "Relu"> (x, w, b) }}""",
    "Gelu": f"""{_HEAD}
        gelu (float[50] x) => (float[50] y) {{ y = com.microsoft.Gelu (x) }}""",
    "BiasGelu": f"""{_HEAD}
        gelu (float[5, 10] x, float[10] b) => (float[5, 10] y) {{ y = com.microsoft.BiasGelu (x, b) }}""",
    "FastGelu": f"""{_HEAD}
        gelu (float[50] x) => (float[50] y) {{ y = com.microsoft.FastGelu (x) }}""",
    "QuickGelu": f"""{_HEAD}
        gelu (float[50] x) => (float[50] y) {{ y = com.microsoft.QuickGelu <alpha = 1.702> (x) }}""",
    "GatherND": f"""{_HEAD}
        gather (float[3, 4] x, int64[3, 1] rows) => (float[3, 4] y) {{ y = com.microsoft.GatherND (x, rows) }}""",
    "Trilu": f"""{_HEAD}
        trilu (float[3, 4] x) => (float[3, 4] y) {{ y = com.microsoft.Trilu (x) }}""",
    "SimplifiedLayerNormalization": """
        <ir_version: 8, opset_import: ["" : 17]>
        norm (float[3, 8] x, float[8] scale) => (float[3, 8] y) { y = SimplifiedLayerNormalization (x, scale) }""",
}


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(erf)(x / sqrt(2))))


def _convolution(x: Array, w: Array, b: Array) -> Array:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(2, 3))
    return np.asarray(np.einsum("nchwij,ocij->nohw", windows, w) + b[:, None, None])


def _normalised(x: Array, scale: Array, b: Array, mean: Array, var: Array) -> Array:
    return (x - mean[:, None]) / np.sqrt(var[:, None] + 1e-5) * scale[:, None] + b[:, None]


def _doubled_linearly(x: Array, scales: Array) -> Array:
    """Twice the size along the last two axes, with coordinates i/2 as opset 10 has them."""
    assert scales.tolist() == [1, 1, 2, 2]
    for axis in (2, 3):
        ahead = np.concatenate([x.take(range(1, x.shape[axis]), axis), x.take([-1], axis)], axis)
        shape = [n * (2 if a == axis else 1) for a, n in enumerate(x.shape)]
        x = np.stack([x, (x + ahead) / 2], axis + 1).reshape(shape)
    return x


def _attention(q: Array, k: Array, v: Array, heads: int = 2) -> Array:
    def split(x: Array) -> Array:
        return x.reshape(x.shape[1], heads, -1).swapaxes(0, 1)

    scores = split(q) @ split(k).swapaxes(1, 2) / sqrt(q.shape[2] / heads)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ split(v)
    return np.asarray(mixed.swapaxes(0, 1).reshape(q.shape))


REFERENCES: dict[str, Callable[..., Array]] = {
    "BatchNormalization-9": _normalised,
    "BatchNormalization-14": _normalised,
    "Resize-10": _doubled_linearly,
    "Upsample-7": lambda x: x.repeat(2, axis=2).repeat(2, axis=3),
    "TransposeMatMul": lambda a, b: a @ b.T,
    "MultiHeadAttention": _attention,
    "FusedMatMul": lambda a, b: 0.5 * (a @ b.T),
    "FusedGemm": lambda a, b, c: np.maximum(a @ b + c, 0),
    "FusedConv": lambda x, w, b: np.maximum(_convolution(x, w, b), 0),
    "Gelu": _gelu,
    "BiasGelu": lambda x, b: _gelu(x + b),
    "FastGelu": lambda x: x * 0.5 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "QuickGelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "SimplifiedLayerNormalization": lambda x, scale: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale,
}
