"""Constants in the formats their readers want: narrow in place, or a narrow copy beside a wide one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from converter.errors import InternalError
from converter.formats import FloatFormat
from converter.rewrite.base import Draft, Pass, provenance, tensor_type
from converter.types import ConstantChange

Rounder = Callable[[NDArray[np.float32], FloatFormat], NDArray[np.generic]]


class NarrowTensor(ir.LazyTensor):
    """A constant to be stored narrow; its values are made when they are written.

    ``source`` holds the FP32 values, ``bound`` limits them first (sentinels only).
    """

    def __init__(self, source: ir.TensorProtocol, fmt: FloatFormat, name: str, bound: float | None = None) -> None:
        self.source = source
        self.fmt = fmt
        self.bound = bound
        assert fmt.onnx_type is not None
        super().__init__(
            self._make,
            dtype=ir.DataType(fmt.onnx_type),
            shape=ir.Shape(source.shape.numpy()),
            name=name,
            doc_string=source.doc_string,
        )

    def _make(self) -> ir.TensorProtocol:
        return ir.Tensor(to_narrow(self.source.numpy(), self.fmt, self.bound), name=self.name)


def to_narrow(array: NDArray[np.generic], fmt: FloatFormat, bound: float | None) -> NDArray[np.generic]:
    """FP32 values in the narrow storage type, limited first where asked."""
    if bound is not None:
        array = np.clip(array, np.float32(-bound), np.float32(bound))
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(fmt.dtype)


class NarrowInitializers(Pass):
    """Narrow every constant all of whose readers are narrow; give mixed ones a narrow copy."""

    def apply(self, draft: Draft) -> None:
        """Rewire narrow readers of constants; wide readers keep what they had."""
        for value_id in sorted(draft.index.constants):
            if draft.index.is_wide(value_id):
                self._narrow(draft, value_id)

    def _narrow(self, draft: Draft, value_id: int) -> None:
        index, plan, narrow = draft.index, draft.plan, draft.fmt.name
        readers = [r for r in index.readers[value_id] if plan.reads.get(r) == narrow]
        leaves = [leaf for leaf in index.leaves[value_id] if plan.leaves.get(leaf) == narrow]
        if not readers and not leaves:
            return
        value = index.values[value_id]
        bound = plan.saturated_constants.get(value_id)
        source = index.constants[value_id]
        all_narrow = len(readers) == len(index.readers[value_id]) and len(leaves) == len(index.leaves[value_id])
        name = (value.name or "") if all_narrow else draft.fresh(f"{value.name}_{narrow}")
        tensor = NarrowTensor(source, draft.fmt, name, bound)
        if bound is not None:
            draft.changed.append(_change(value.name or "", source, draft.fmt, bound))
        if all_narrow:
            _replace(value, tensor, narrow)
            return
        copy = _add_copy(draft, value_id, tensor)
        for node_id, position in readers:
            index.nodes[node_id].replace_input_with(position, copy)
        for scope_id, position in leaves:
            index.scopes[scope_id].graph.outputs[position] = copy


def _replace(value: ir.Value, tensor: NarrowTensor, narrow: str) -> None:
    producer = value.producer()
    value.type = tensor_type(narrow)
    if producer is None:
        value.const_value = tensor
        return
    for name in [n for n in producer.attributes if n.startswith("value")]:
        del producer.attributes[name]
    producer.attributes["value"] = ir.AttrTensor("value", tensor)


def _add_copy(draft: Draft, value_id: int, tensor: NarrowTensor) -> ir.Value:
    """A narrow twin of a constant, in the scope of the original."""
    index = draft.index
    value = index.values[value_id]
    graph = index.scopes[index.value_scope[value_id]].graph
    copy = ir.Value(name=tensor.name, type=tensor_type(draft.fmt.name), shape=value.shape)
    copy.metadata_props.update(provenance("constants", value.name or ""))
    producer = value.producer()
    if producer is None:
        copy.const_value = tensor
        graph.register_initializer(copy)
        return copy
    node = ir.Node(
        "",
        "Constant",
        [],
        [ir.AttrTensor("value", tensor)],
        outputs=[copy],
        name=draft.fresh_node(f"{tensor.name}_constant"),
        metadata_props=provenance("constants", value.name or ""),
    )
    graph.insert_after(producer, node)
    return copy


def _change(name: str, source: ir.TensorProtocol, fmt: FloatFormat, bound: float) -> ConstantChange:
    array = np.asarray(source.numpy(), np.float32).reshape(-1)
    beyond = np.abs(array) > bound
    if not beyond.any():
        raise InternalError(f"constant '{name}' is limited to {bound} but holds nothing beyond; a bug in narrowcast")
    worst = float(array[int(np.argmax(np.where(np.isfinite(array), np.abs(array), 0)))])
    after = float(to_narrow(np.array([worst], np.float32), fmt, bound).astype(np.float32)[0])
    reason = f"a sentinel that means 'masked': limited so that adding a score stays finite in {fmt.label}"
    return ConstantChange(name, "", int(beyond.sum()), worst, after, reason)
