"""Give every value its stored type, and nodes the attributes that say it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from converter.formats import FloatFormat
from converter.operators import canonical_domain
from converter.rewrite.base import Draft, Pass, tensor_type
from converter.rewrite.narrow_initializers import NarrowTensor, to_narrow
from converter.types import ConstantChange


class Retype(Pass):
    """Values stored narrow get the narrow type; ``to``, ``dtype`` and their kin follow."""

    def apply(self, draft: Draft) -> None:
        """Set types and attributes; edges between formats are still open afterwards."""
        index, narrow = draft.index, draft.fmt.name
        for value_id, wanted in draft.plan.stored.items():
            if wanted != narrow:
                continue
            value = index.values[value_id]
            value.type = tensor_type(narrow)
            if value.const_value is not None:  # the default of an input
                value.const_value = NarrowTensor(value.const_value, draft.fmt, value.name or "")
            producer = index.producer[value_id]
            if producer >= 0 and index.outputs[producer][0] == value_id:
                _set_attribute(index.nodes[producer], draft.fmt, draft.changed)


def _set_attribute(node: ir.Node, fmt: FloatFormat, changed: list[ConstantChange]) -> None:
    setter = _SETTERS.get(node.op_type) if canonical_domain(node.domain) == "" else None
    if setter is not None:
        setter(node, fmt, changed)


def _integer(name: str) -> Callable[[ir.Node, FloatFormat, list[ConstantChange]], None]:
    def set_type(node: ir.Node, fmt: FloatFormat, changed: list[ConstantChange]) -> None:
        del changed
        assert fmt.onnx_type is not None
        node.attributes[name] = ir.AttrInt64(name, fmt.onnx_type)

    return set_type


def _constant_of_shape(node: ir.Node, fmt: FloatFormat, changed: list[ConstantChange]) -> None:
    """The fill value in the narrow type; without the attribute it is an FP32 zero."""
    del changed
    value = node.attributes.get("value")
    wide = np.zeros(1, np.float32) if value is None else value.as_tensor().numpy()
    assert fmt.onnx_type is not None
    tensor = ir.tensor(to_narrow(wide, fmt, None), dtype=ir.DataType(fmt.onnx_type), name="value")
    node.attributes["value"] = ir.AttrTensor("value", tensor)


_SETTERS: dict[str, Callable[[ir.Node, FloatFormat, list[ConstantChange]], None]] = {
    "Cast": _integer("to"),
    "ConstantOfShape": _constant_of_shape,
} | {
    op_type: _integer("dtype")
    for op_type in (
        "EyeLike",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
    )
}
_SETTERS |= {
    op_type: _integer("output_datatype")
    for op_type in ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix")
}
