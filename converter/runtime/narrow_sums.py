"""Operators under the pessimistic profile: sums whose running total is kept in the narrow format.

Only used where the profile asks for it, the operator's policy row says that hardware may sum so, and the result is
stored narrow.  Everything else runs in ONNX Runtime's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from converter.formats import FloatFormat
from converter.numerics.narrow_sums import narrow_dot, narrow_sum
from converter.numerics.rounding import round_to
from converter.runtime.program import Step
from converter.types import EmulationProfile

Array = NDArray[np.float32]
Emulator = Callable[[Step, Sequence[Array], FloatFormat, EmulationProfile], Array]


def _attribute(step: Step, name: str, default: Any) -> Any:
    for attribute in step.node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def _matmul(step: Step, feeds: Sequence[Array], fmt: FloatFormat, profile: EmulationProfile) -> Array:
    del step
    return narrow_dot(feeds[0], feeds[1], fmt, profile)


def _gemm(step: Step, feeds: Sequence[Array], fmt: FloatFormat, profile: EmulationProfile) -> Array:
    a = feeds[0].T if _attribute(step, "transA", 0) else feeds[0]
    b = feeds[1].T if _attribute(step, "transB", 0) else feeds[1]
    product = np.float32(_attribute(step, "alpha", 1.0)) * narrow_dot(a, b, fmt, profile)
    if len(feeds) > 2:
        product = round_to(product, fmt, profile) + np.float32(_attribute(step, "beta", 1.0)) * feeds[2]
    return product


def _axes(step: Step, feeds: Sequence[Array]) -> tuple[int, ...]:
    rank = feeds[0].ndim
    axes = _attribute(step, "axes", None)
    if axes is None and len(feeds) > 1:
        axes = np.asarray(feeds[1]).reshape(-1).tolist()
    if not axes:
        return () if _attribute(step, "noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(int(a) % rank for a in axes)


def _reduce_sum(step: Step, feeds: Sequence[Array], fmt: FloatFormat, profile: EmulationProfile) -> Array:
    axes = _axes(step, feeds)
    if not axes:
        return feeds[0]
    total = narrow_sum(feeds[0], axes, fmt, profile)
    return np.expand_dims(total, axes) if _attribute(step, "keepdims", 1) else total


def _reduce_mean(step: Step, feeds: Sequence[Array], fmt: FloatFormat, profile: EmulationProfile) -> Array:
    axes = _axes(step, feeds)
    count = int(np.prod([feeds[0].shape[a] for a in axes], dtype=np.int64)) if axes else 1
    return _reduce_sum(step, feeds, fmt, profile) / np.float32(max(1, count))


def _sum(step: Step, feeds: Sequence[Array], fmt: FloatFormat, profile: EmulationProfile) -> Array:
    del step
    total = feeds[0]
    for term in feeds[1:]:
        total = round_to(np.asarray(total + term, np.float32), fmt, profile)
    return total


def _mean(step: Step, feeds: Sequence[Array], fmt: FloatFormat, profile: EmulationProfile) -> Array:
    return _sum(step, feeds, fmt, profile) / np.float32(len(feeds))


EMULATORS: dict[str, Emulator] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "ReduceSum": _reduce_sum,
    "ReduceMean": _reduce_mean,
    "Sum": _sum,
    "Mean": _mean,
}
"""Operators of the standard domain that can be summed narrow here."""
