"""Rounding to FP16, BF16 and TF32 in plain NumPy: the reference that faster kernels are tested against.

One algorithm serves every format and both carriers (float32 and float64), so each rounding happens exactly
once: FP64 goes to FP16 directly, not by way of FP32.  Narrow values travel as float32, in which every one of
them is exact.

How a profile acts, always in this order:

1. the exact result is rounded to nearest, ties to even, subnormals included;
2. ``overflow``: ``inf`` keeps the infinities that rounding made; ``saturate`` has none, so a finite value that
   overflows *and* an infinity that comes in both become the largest finite number of their sign;
3. ``flush_subnormals``: what is below the smallest normal *after* rounding becomes zero with its sign, so a
   value that rounds up to the smallest normal is kept.  Narrow inputs need no step of their own: they were
   rounded under the same profile when they were made.

Every profile keeps the sign of zero and keeps NaN a NaN (its payload is not promised).  Profiles leave FP32
alone: they speak of narrow values.  The fields are independent, see ``compose_profiles``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from converter.errors import OptionError
from converter.formats import FP32, FloatFormat
from converter.numerics.chunks import chunks
from converter.types import EmulationProfile

Float32Array = NDArray[np.float32]

IEEE: Final = EmulationProfile()

PROFILES: Final[Mapping[str, EmulationProfile]] = MappingProxyType(
    {
        "ieee": IEEE,
        "ascend": EmulationProfile("ascend", overflow="saturate", flush_subnormals=True),
        "narrow-accumulate": EmulationProfile("narrow-accumulate", narrow_accumulate=True),
    }
)
"""``ieee``: round to nearest even, subnormals kept, overflow to infinity.  ``ascend``: overflow saturates to the
largest finite number, subnormals are flushed on input and output.  ``narrow-accumulate``: ``ieee``, and
operators whose policy row says so sum in the narrow format (a pessimistic bound, see ``narrow_sums``)."""


def compose_profiles(a: EmulationProfile, b: EmulationProfile) -> EmulationProfile:
    """A profile that does what either one does; commutative, associative and idempotent but for its name.

    ``ieee`` adds nothing and drops out of the name.
    """
    names = sorted({part for p in (a, b) for part in p.name.split("+")} - {IEEE.name}) or [IEEE.name]
    return EmulationProfile(
        name="+".join(names),
        overflow="saturate" if "saturate" in (a.overflow, b.overflow) else "inf",
        flush_subnormals=a.flush_subnormals or b.flush_subnormals,
        narrow_accumulate=a.narrow_accumulate or b.narrow_accumulate,
    )


def profile_named(name: str) -> EmulationProfile:
    """The profile of a name, or of several joined by ``+`` (``ascend+narrow-accumulate``).

    Raises OptionError for a name that is not in PROFILES.
    """
    parts = name.split("+")
    unknown = [part for part in parts if part not in PROFILES]
    if unknown:
        raise OptionError(f"unknown emulation profile {unknown[0]!r}; known are {', '.join(PROFILES)}, joined by '+'")
    return reduce(compose_profiles, (PROFILES[part] for part in parts))


# ------------------------------------------------------------------------------------------- rounding


def round_to(x: Float32Array, fmt: FloatFormat, profile: EmulationProfile = IEEE) -> Float32Array:
    """Return the values of ``x`` rounded to ``fmt``, as a new float32 array of the same shape.

    FP32 gives a plain copy.  Raises TypeError when ``x`` is not float32: other types go through ``round_wide``.
    """
    if x.dtype != np.float32:
        raise TypeError(f"round_to takes float32 and got {x.dtype}; use round_wide, which rounds once")
    if fmt == FP32:
        return np.array(x, order="C")
    out = np.empty(x.shape, np.float32)
    with np.errstate(all="ignore"):
        for source, target in chunks(x, out):
            _round_chunk(source, target, fmt, profile)
    return out


def round_wide(x: NDArray[Any], fmt: FloatFormat, profile: EmulationProfile = IEEE) -> Float32Array:
    """Return float64 or integer values rounded *once* to ``fmt``, as a float32 array of the same shape.

    Narrower floats and booleans are taken too (they are exact in float64).  Raises TypeError for other types.
    """
    if x.dtype.kind not in "iub" and not np.can_cast(x.dtype, np.float64):
        raise TypeError(f"round_wide takes floats of at most 64 bits, integers or booleans and got {x.dtype}")
    out = np.empty(x.shape, np.float32)
    with np.errstate(all="ignore"):
        for source, target in chunks(x, out):
            wide = _to_float64(source)
            rounded = np.empty_like(wide)
            _round_chunk(wide, rounded, fmt, IEEE if fmt == FP32 else profile)
            np.copyto(target, rounded, casting="same_kind")
    return out


@dataclass(frozen=True, slots=True)
class _Carrier:
    """The wide type in which values are held while they are rounded."""

    bits: type[np.unsignedinteger[Any]]
    mantissa_bits: int
    max_exponent: int

    @property
    def sign_mask(self) -> int:
        return 1 << (8 * np.dtype(self.bits).itemsize - 1)

    def exponent_field(self, exponent: int) -> int:
        """The bits of ``2**exponent`` (a normal number)."""
        return (exponent + self.max_exponent) << self.mantissa_bits


def _carrier(dtype: type[np.floating[Any]], bits: type[np.unsignedinteger[Any]]) -> _Carrier:
    limits = np.finfo(dtype)
    return _Carrier(bits, int(limits.nmant), int(limits.maxexp) - 1)


_CARRIERS: Final = {
    np.dtype(np.float32): _carrier(np.float32, np.uint32),
    np.dtype(np.float64): _carrier(np.float64, np.uint64),
}


def _round_chunk(x: NDArray[Any], out: NDArray[Any], fmt: FloatFormat, profile: EmulationProfile) -> None:
    """Round the flat float32 or float64 array ``x`` into ``out``, which has its type.

    To each magnitude a power of two is added, and taken off again, whose ULP in the carrier is the ULP of the
    narrow format at that magnitude: the adder itself rounds to nearest even, subnormals and carries included.
    """
    carrier = _CARRIERS[x.dtype]
    dropped = carrier.mantissa_bits - fmt.mantissa_bits
    top = math.frexp(fmt.max_finite)[1]  # 2**top is the first power of two beyond the format
    magnitude = np.abs(x)
    largest = magnitude.max()
    if top + dropped > carrier.max_exponent and not largest < 2.0 ** (carrier.max_exponent - dropped):
        _round_by_way_of_float64(x, out, fmt, profile)
        return
    field = x.view(carrier.bits) & carrier.exponent_field(carrier.max_exponent + 1)
    lowest = math.frexp(fmt.smallest_normal)[1] - 1
    np.clip(field, carrier.exponent_field(lowest), carrier.exponent_field(top), out=field)
    field += dropped << carrier.mantissa_bits
    magnitude += field.view(x.dtype)
    magnitude -= field.view(x.dtype)
    if not largest <= fmt.max_finite:
        limit = fmt.max_finite if profile.overflow == "saturate" else math.inf
        np.copyto(magnitude, limit, where=magnitude > fmt.max_finite)
    if profile.flush_subnormals:
        np.copyto(magnitude, 0, where=magnitude < fmt.smallest_normal)
    sign = np.bitwise_and(x.view(carrier.bits), carrier.sign_mask, out=field)
    np.bitwise_or(magnitude.view(carrier.bits), sign, out=out.view(carrier.bits))


def _round_by_way_of_float64(x: NDArray[Any], out: NDArray[Any], fmt: FloatFormat, profile: EmulationProfile) -> None:
    """For float32 magnitudes near the end of FP32's range, where the power of two to add would overflow."""
    wide = np.empty(x.shape, np.float64)
    _round_chunk(x.astype(np.float64), wide, fmt, profile)
    np.copyto(out, wide, casting="same_kind")


def _to_float64(x: NDArray[Any]) -> NDArray[np.float64]:
    """Widen to float64; 64-bit integers of more than 53 bits are rounded to odd, which a later rounding to at
    most 24 bits cannot see.
    """
    wide: NDArray[np.float64] = x.astype(np.float64)
    if x.dtype.kind not in "iu" or x.dtype.itemsize < 8:
        return wide
    exact = (x >> 53 == 0) | (x >> 53 == -1)
    if not exact.all():
        kept = (x >> 11) | ((x & 2047) != 0)
        np.copyto(wide, kept.astype(np.float64) * 2048, where=~exact)
    return wide


# -------------------------------------------------------------------------------- parts and neighbours


def saturate(x: Float32Array, fmt: FloatFormat) -> Float32Array:
    """Return ``x`` with every magnitude beyond the largest finite number, infinity too, held at it; NaN stays."""
    return np.clip(x, np.float32(-fmt.max_finite), np.float32(fmt.max_finite))


def flush_subnormals(x: Float32Array, fmt: FloatFormat) -> Float32Array:
    """Return ``x`` with every magnitude below the smallest normal replaced by zero of the same sign."""
    return np.where(np.abs(x) < fmt.smallest_normal, np.copysign(np.float32(0), x), x)


def ulp(x: NDArray[Any], fmt: FloatFormat) -> NDArray[np.float64]:
    """Return the distance between neighbours of ``fmt`` at the magnitude of each element, as float64.

    Below the smallest normal it is the smallest subnormal; beyond the largest finite number that of the last
    binade; at a power of two the larger of the two distances; NaN for NaN and infinity.
    """
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(np.asarray(x, np.float64))
    bounded = np.clip(magnitude, fmt.smallest_normal, fmt.max_finite)
    spacing = np.ldexp(fmt.eps, np.frexp(bounded)[1] - 1)
    return np.where(np.isfinite(magnitude), spacing, np.nan)


def to_storage(x: Float32Array, fmt: FloatFormat) -> NDArray[Any]:
    """Return ``x`` rounded to ``fmt`` (as ``round_to`` under ``ieee``) in the format's own NumPy dtype."""
    if fmt.dtype == np.float32:
        return round_to(x, fmt)
    with np.errstate(all="ignore"):
        return x.astype(fmt.dtype)


def from_storage(x: NDArray[Any]) -> Float32Array:
    """Return stored FP16, BF16 or FP32 values as float32, exactly; a float32 array is returned as it is."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32, copy=False)
