"""Results of a program: compared, described, and written for whoever does not have torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from converter.source.npz import write_npz
from converter.source.torch_program.arguments import TENSOR_TYPES, Leaf
from converter.source.torch_program.reasons import ExportFailed

STATE_CHANGE = 1e-5
"""Relative L2 difference of two equal calls from which a program counts as one that keeps state."""


def differ(first: Sequence[Leaf], second: Sequence[Leaf]) -> bool:
    """Whether the floats of two results differ by more than a sum in another order would."""
    for a, b in zip(first, second, strict=True):
        if isinstance(a.value, torch.Tensor) and a.value.is_floating_point():
            x, y = a.value.double(), b.value.double()
            if x.shape != y.shape or not torch.equal(x.isnan(), y.isnan()):
                return True
            gap = torch.where(x.isfinite() & y.isfinite(), x - y, 0.0)
            if float(gap.norm()) > STATE_CHANGE * float(x.nan_to_num(0, 0, 0).norm() or 1.0):
                return True
    return False


def check_results(results: Sequence[Leaf]) -> None:
    """Refuse results that an ONNX graph has no outputs for.

    Raises:
        ExportFailed: there is no tensor among them, or one of a type that ONNX lacks.
    """
    tensors = [leaf for leaf in results if isinstance(leaf.value, torch.Tensor)]
    if not tensors:
        raise ExportFailed(
            "the program returns no tensor, so there is nothing to convert and nothing to compare; return what it "
            "computes (a dataclass is no tensor: return a tuple or a dict)"
        )
    for leaf in tensors:
        if leaf.value.layout != torch.strided or leaf.value.dtype not in TENSOR_TYPES:
            kind = str(leaf.value.dtype if leaf.value.layout == torch.strided else leaf.value.layout)
            raise ExportFailed(
                f"the program's {leaf.path} is a tensor of {kind.removeprefix('torch.')}, which no ONNX output can be; "
                "return dense floats or integers (of complex numbers: torch.view_as_real)"
            )


def save_arrays(path: Path, values: Mapping[str, Any]) -> None:
    """Tensors and numbers as an ``.npz``."""
    write_npz(path, {name: as_array(value) for name, value in values.items()})


def as_array(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A tensor or number as NumPy has it; BF16 as the same numbers in FP32."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value, np.int64 if isinstance(value, int) and not isinstance(value, bool) else None)
    value = value.detach()
    return np.asarray((value.float() if value.dtype == torch.bfloat16 else value).cpu().contiguous().numpy())


def described(leaves: Sequence[Leaf]) -> str:
    """Arguments with their types and shapes, for messages."""

    def one(leaf: Leaf) -> str:
        if isinstance(leaf.value, torch.Tensor):
            kind = str(leaf.value.dtype).removeprefix("torch.")
            return f"{leaf.name} {kind}{list(leaf.value.shape)}"
        return f"{leaf.name} {leaf.value!r}"

    return ", ".join(map(one, leaves)) or "no arguments"
