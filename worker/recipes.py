"""Batches made from a recipe, so that a caller in CI needs no file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from converter.errors import BatchError

if TYPE_CHECKING:
    import numpy as np

MAX_BYTES: Final = 2**30
DISTRIBUTIONS: Final = ("normal", "uniform", "integers", "zeros", "ones")


def write_batch(recipe: Mapping[str, Any], target: Path) -> None:
    """Write the ``.npz`` that a recipe describes; the same recipe gives the same numbers.

    Raises:
        BatchError: it would be larger than MAX_BYTES, or names a distribution or type we do not know.
    """
    import numpy as np

    tensors: Mapping[str, Mapping[str, Any]] = recipe["tensors"]
    size = sum(math.prod(one["shape"]) * np.dtype(one["dtype"]).itemsize for one in tensors.values())
    if size > MAX_BYTES:
        raise BatchError(f"the recipe describes {size} bytes; at most {MAX_BYTES} are made; send a file instead")
    random = np.random.default_rng(recipe.get("seed", 0))
    arrays = {name: _draw(name, tensors[name], random) for name in sorted(tensors)}
    with target.open("wb") as file:
        np.savez(file, **arrays)


def _draw(name: str, tensor: Mapping[str, Any], random: np.random.Generator) -> Any:
    import numpy as np

    shape, dtype = tuple(tensor["shape"]), np.dtype(tensor["dtype"])
    low, high = tensor.get("low", 0.0), tensor.get("high", 1.0)
    match tensor.get("distribution", "normal"):
        case "normal":
            return random.normal(tensor.get("mean", 0.0), tensor.get("std", 1.0), shape).astype(dtype)
        case "uniform":
            return random.uniform(low, high, shape).astype(dtype)
        case "integers":
            return random.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
        case "zeros":
            return np.zeros(shape, dtype)
        case "ones":
            return np.ones(shape, dtype)
        case other:
            raise BatchError(f"tensor {name}: {other!r} is no distribution; use one of {', '.join(DISTRIBUTIONS)}")
