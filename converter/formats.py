"""The float formats narrowcast converts between: the only home of numeric limits.

Every number comes from ``finfo`` (ml_dtypes for BF16); nothing is typed in as a literal here or elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """One binary float format.

    ``onnx_type`` is the element type's number in ``onnx.TensorProto.DataType`` (None for TF32, which is
    stored as FP32), ``type_string`` its name inside ONNX type strings such as ``tensor(float16)``.
    """

    name: str
    label: str
    onnx_type: int | None
    element: str
    storage_bits: int
    exponent_bits: int
    mantissa_bits: int
    max_finite: float
    smallest_normal: float
    smallest_subnormal: float
    eps: float

    @property
    def type_string(self) -> str:
        return f"tensor({self.element})"

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding a normal number to nearest: half of eps."""
        return self.eps / 2

    @property
    def overflow_threshold(self) -> float:
        """Smallest magnitude that rounds to infinity: half an ULP above the largest finite number."""
        return self.max_finite * (1 + self.eps / 2 / (2 - self.eps))

    @property
    def largest_exact_integer(self) -> int:
        """All integers up to this one are exact in the format."""
        return int(2 ** (self.mantissa_bits + 1))

    @property
    def itemsize(self) -> int:
        return self.storage_bits // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype that stores the format."""
        return np.dtype(_DTYPES[self.name])


_DTYPES: Final[dict[str, DTypeLike]] = {
    "fp32": np.float32,
    "tf32": np.float32,
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
}


def _from_finfo(name: str, label: str, onnx_type: int, element: str) -> FloatFormat:
    limits: Any = ml_dtypes.finfo(_DTYPES[name])
    return FloatFormat(
        name=name,
        label=label,
        onnx_type=onnx_type,
        element=element,
        storage_bits=int(limits.bits),
        exponent_bits=int(limits.nexp),
        mantissa_bits=int(limits.nmant),
        max_finite=float(limits.max),
        smallest_normal=float(limits.smallest_normal),
        smallest_subnormal=float(limits.smallest_subnormal),
        eps=float(limits.eps),
    )


def _tf32() -> FloatFormat:
    """TF32: FP32's exponent with FP16's mantissa, used inside matrix units and stored as FP32."""
    wide, half = _from_finfo("fp32", "FP32", 1, "float"), _from_finfo("fp16", "FP16", 10, "float16")
    return FloatFormat(
        name="tf32",
        label="TF32",
        onnx_type=None,
        element="float",
        storage_bits=wide.storage_bits,
        exponent_bits=wide.exponent_bits,
        mantissa_bits=half.mantissa_bits,
        max_finite=(2 - half.eps) * 2.0 ** (2 ** (wide.exponent_bits - 1) - 1),
        smallest_normal=wide.smallest_normal,
        smallest_subnormal=wide.smallest_normal * half.eps,
        eps=half.eps,
    )


FP32: Final = _from_finfo("fp32", "FP32", 1, "float")
FP16: Final = _from_finfo("fp16", "FP16", 10, "float16")
BF16: Final = _from_finfo("bf16", "BF16", 16, "bfloat16")
TF32: Final = _tf32()

FORMATS: Final[tuple[FloatFormat, ...]] = (FP32, TF32, FP16, BF16)
NARROW_FORMATS: Final[dict[str, FloatFormat]] = {"fp16": FP16, "bf16": BF16}

_BY_TYPE_STRING: Final = {f.type_string: f for f in (FP32, FP16, BF16)}


def format_of(type_string: str | None) -> FloatFormat | None:
    """The format of an ONNX type string such as ``tensor(float16)``; None for any other type."""
    return _BY_TYPE_STRING.get(type_string or "")
