"""Floating-point operations of matrix products and convolutions, from the shapes that were seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.types import ValueRange

Shape = tuple[int, ...]


def node_flops(index: ModelIndex, ranges: Mapping[int, ValueRange]) -> dict[int, float]:
    """Multiply-adds times two by node id, for operators that are matrix products inside.

    Nodes whose shapes were not seen (no samples, or a branch not taken) count from static shapes, or as 0.
    """

    def shape(value_id: int) -> Shape | None:
        if value_id < 0:
            return None
        if value_id in ranges:
            return ranges[value_id].shape
        constant = index.constants.get(value_id)
        if constant is not None:
            return tuple(int(d) for d in constant.shape.numpy())
        stated = index.values[value_id].shape
        dims = tuple(d for d in stated if isinstance(d, int)) if stated is not None else ()
        return dims if stated is not None and len(dims) == len(stated) else None

    found: dict[int, float] = {}
    for node_id, node in enumerate(index.nodes):
        counter = _COUNTERS.get(node.op_type) if canonical_domain(node.domain) in ("", "com.microsoft") else None
        if counter is None:
            continue
        inputs = [shape(v) for v in index.inputs[node_id]]
        outputs = [shape(v) for v in index.outputs[node_id]]
        try:
            found[node_id] = counter(inputs, outputs)
        except (TypeError, IndexError):
            found[node_id] = 0.0
    return found


def _size(shape: Shape | None) -> float:
    return float(math.prod(shape)) if shape is not None else 0.0


def _matmul(inputs: list[Shape | None], outputs: list[Shape | None]) -> float:
    a = inputs[0]
    return 2.0 * _size(outputs[0]) * (a[-1] if a else 1)


def _gemm(inputs: list[Shape | None], outputs: list[Shape | None]) -> float:
    return 2.0 * _size(inputs[0]) * (outputs[0][-1] if outputs[0] else 1)


def _conv(inputs: list[Shape | None], outputs: list[Shape | None]) -> float:
    weights = inputs[1]
    return 2.0 * _size(outputs[0]) * math.prod(weights[1:]) if weights else 0.0


def _conv_transpose(inputs: list[Shape | None], outputs: list[Shape | None]) -> float:
    del outputs
    weights = inputs[1]
    return 2.0 * _size(inputs[0]) * math.prod(weights[1:]) if weights else 0.0


def _recurrent(inputs: list[Shape | None], outputs: list[Shape | None]) -> float:
    del outputs
    x, w, r = inputs[0], inputs[1], inputs[2]
    return 2.0 * x[0] * x[1] * (_size(w) + _size(r)) if x else 0.0


_COUNTERS: dict[str, Callable[[list[Shape | None], list[Shape | None]], float]] = {
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "FusedConv": _conv,
    "DeformConv": _conv,
    "ConvTranspose": _conv_transpose,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
