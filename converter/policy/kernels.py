"""What may be narrow by its schema and still does not run: gaps of ONNX Runtime's CPU provider (1.32).

The provider computes FP16 in FP32 and puts Casts around a node that has no FP16 kernel, so a missing kernel is no
reason to keep a node wide.  Two kinds of nodes escape it; the operator suite (``tests/suite``) finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from converter.formats import FP16, FloatFormat
from converter.graph import ModelIndex
from converter.operators import canonical_domain

_SOURCES: Final = frozenset(("Cast", "ConstantOfShape", "Constant"))
"""Operators with an FP16 kernel that read no float."""

_ACCUMULATING: Final = frozenset(("ScatterND", "ScatterElements"))


def kernel_gap(
    index: ModelIndex, node_id: int, inputs: Sequence[str], outputs: Sequence[str], fmt: FloatFormat
) -> str | None:
    """Why a node that would read and make ``inputs`` and ``outputs`` (wants of ports) cannot run; None if it can."""
    node = index.nodes[node_id]
    if canonical_domain(node.domain) != "":
        return None
    if fmt is FP16 and "narrow" in outputs and "narrow" not in inputs and node.op_type not in _SOURCES:
        return (
            f"{node.op_type} makes {fmt.label} and reads none, so the CPU provider has no kernel and inserts no casts"
        )
    reduction = node.attributes.get("reduction")
    if node.op_type in _ACCUMULATING and reduction is not None and reduction.as_string() != "none":
        return (
            f"{node.op_type} with reduction '{reduction.as_string()}' has FP32 kernels only, and sums as it is stored"
        )
    return None
