"""Sums and dot products whose running total is kept in the narrow format: the pessimistic bound.

Order: strictly one term after the other, by ascending index along the reduced axes (row-major when there are
several), each partial sum rounded to the format under the profile.  Hardware that adds in blocks or trees, or
keeps a wider accumulator, is better than this.
"""

from __future__ import annotations

import numpy as np

from converter.formats import FloatFormat
from converter.numerics.rounding import IEEE, Float32Array, round_to
from converter.types import EmulationProfile


def narrow_sum(
    x: Float32Array, axis: int | tuple[int, ...], fmt: FloatFormat, profile: EmulationProfile = IEEE
) -> Float32Array:
    """Sum values of ``fmt`` held as float32 along ``axis``, rounding every partial sum; the axes disappear.

    Each float32 addition is exact enough that rounding it to FP16 or BF16 equals rounding the exact sum.
    An empty axis gives zeros.
    """
    axes = (axis,) if isinstance(axis, int) else axis
    terms = np.moveaxis(x, axes, range(len(axes)))
    total = np.zeros(terms.shape[len(axes) :], np.float32)
    with np.errstate(all="ignore"):
        for position in np.ndindex(terms.shape[: len(axes)]):
            total = round_to(np.asarray(total + terms[position]), fmt, profile)
    return total


def narrow_dot(a: Float32Array, b: Float32Array, fmt: FloatFormat, profile: EmulationProfile = IEEE) -> Float32Array:
    """Matrix product ``[..., m, k] x [..., k, n] -> [..., m, n]`` of values of ``fmt`` held as float32.

    Each product and each partial sum is rounded; leading axes broadcast and vectors are taken as
    ``numpy.matmul`` takes them.  Needs memory for two results.  Raises ValueError when the inner sizes differ.
    """
    left = a[np.newaxis, :] if a.ndim == 1 else a
    right = b[:, np.newaxis] if b.ndim == 1 else b
    depth = left.shape[-1]
    if depth != right.shape[-2]:
        raise ValueError(f"narrow_dot needs equal inner sizes and got shapes {a.shape} and {b.shape}")
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*batch, left.shape[-2], right.shape[-1]), np.float32)
    with np.errstate(all="ignore"):
        for k in range(depth):
            product = round_to(left[..., :, k, np.newaxis] * right[..., np.newaxis, k, :], fmt, profile)
            total = round_to(total + product, fmt, profile)
    if a.ndim == 1:
        total = total[..., 0, :]
    return total[..., 0] if b.ndim == 1 else total
