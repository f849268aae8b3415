"""What a plan costs and gains: floating-point operations, cast bytes, memory traffic, from shapes that were seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from converter.formats import FP32, NARROW_FORMATS
from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.types import PrecisionPlan, ValueRange

Shape = tuple[int, ...]


def node_flops(
    index: ModelIndex, ranges: Mapping[int, ValueRange], shapes: Mapping[int, Shape] | None = None
) -> dict[int, float]:
    """Multiply-adds times two by node id, for operators that are matrix products inside.

    ``shapes`` are of values that were seen without a range.  Nodes whose shapes were not seen (no samples, or a branch
    not taken) count from static shapes, or as 0.
    """

    def shape(value_id: int) -> Shape | None:
        if value_id < 0:
            return None
        if value_id in ranges:
            return ranges[value_id].shape
        if shapes and value_id in shapes:
            return shapes[value_id]
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


def narrow_share(flops: Mapping[int, float], plan: PrecisionPlan) -> float:
    """Share of the operations that run in the narrow format; 0.0 for a model without matrix products."""
    total = sum(flops.values())
    narrow = plan.narrow_nodes()
    return sum(f for n, f in flops.items() if n in narrow) / total if total else 0.0


def cast_bytes(plan: PrecisionPlan, ranges: Mapping[int, ValueRange]) -> int:
    """Bytes that all casts of a plan read and write, per batch."""
    each = FP32.itemsize + NARROW_FORMATS[plan.to].itemsize
    return sum(_elements(ranges, c.value_id) * each for c in plan.casts)


def plan_bytes(plan: PrecisionPlan, ranges: Mapping[int, ValueRange]) -> int:
    """Bytes of all activations as a plan stores them, and of its casts, per batch."""
    narrow = NARROW_FORMATS[plan.to].itemsize
    stored = sum(
        _elements(ranges, v) * (narrow if wanted == plan.to else FP32.itemsize) for v, wanted in plan.stored.items()
    )
    return stored + cast_bytes(plan, ranges)


def estimated_gain(index: ModelIndex, plan: PrecisionPlan, ranges: Mapping[int, ValueRange]) -> float:
    """Memory traffic of weights and activations before over after, casts included: a model, not a measurement."""
    before = after = 0.0
    ratio = NARROW_FORMATS[plan.to].itemsize / FP32.itemsize
    for value_id, tensor in index.constants.items():
        if index.is_wide(value_id):
            readers = index.readers[value_id]
            narrow = bool(readers) and all(plan.reads.get(r) == plan.to for r in readers)
            before += tensor.nbytes
            after += tensor.nbytes * (ratio if narrow else 1)
    for value_id, stored in plan.stored.items():
        size = float(FP32.itemsize * _elements(ranges, value_id))
        before += size
        after += size * (ratio if stored == plan.to else 1)
    after += cast_bytes(plan, ranges)
    return before / after if after else 1.0


def _elements(ranges: Mapping[int, ValueRange], value_id: int) -> int:
    seen = ranges.get(value_id)
    return int(np.prod(seen.shape, dtype=np.int64)) if seen is not None else 0
