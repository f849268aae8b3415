"""Reduction depth: how many terms one output element sums, from the shapes that were seen."""

from __future__ import annotations

import math

from converter.policy.context import Context
from converter.types import Depth


def reduction_depth(context: Context, node_id: int) -> int | None:
    """Terms per output element of a node by its policy row; None when the shapes are not known."""
    row = context.row(node_id)
    if row is None or row.depth is Depth.ONE:
        return 1
    if row.depth is Depth.INPUTS:
        return sum(v >= 0 for v in context.index.inputs[node_id])
    counter = {
        Depth.INNER: _inner,
        Depth.KERNEL: _kernel,
        Depth.AXES: _axes,
        Depth.SPATIAL: _spatial,
        Depth.LAST: _last,
        Depth.WINDOW: _window,
        Depth.HIDDEN: _hidden,
    }[row.depth]
    return counter(context, node_id)


def _shape(context: Context, value_id: int) -> tuple[int, ...] | None:
    if value_id < 0:
        return None
    tensor = context.index.constants.get(value_id)
    if tensor is not None:
        return tuple(int(d) for d in tensor.shape.numpy())
    seen = context.seen(value_id)
    return None if seen is None else seen.shape


def _input_shape(context: Context, node_id: int, position: int = 0) -> tuple[int, ...] | None:
    inputs = context.index.inputs[node_id]
    return _shape(context, inputs[position]) if position < len(inputs) else None


def _inner(context: Context, node_id: int) -> int | None:
    shape = _input_shape(context, node_id)
    if not shape:
        return None
    node = context.index.nodes[node_id]
    transposed = node.attributes.get("transA")
    return shape[0] if transposed is not None and transposed.as_int() else shape[-1]


def _kernel(context: Context, node_id: int) -> int | None:
    shape = _input_shape(context, node_id, 1)
    return math.prod(shape[1:]) if shape else None


def _axes(context: Context, node_id: int) -> int | None:
    """Elements in over elements out: that is what the reduced axes hold."""
    before, after = _input_shape(context, node_id), _shape(context, context.index.outputs[node_id][0])
    if before is None or after is None:
        return None
    return max(1, math.prod(before) // max(1, math.prod(after)))


def _spatial(context: Context, node_id: int) -> int | None:
    shape = _input_shape(context, node_id)
    return math.prod(shape[2:]) if shape else None


def _last(context: Context, node_id: int) -> int | None:
    shape = _input_shape(context, node_id)
    if not shape:
        return None
    attribute = context.index.nodes[node_id].attributes.get("axis")
    return shape[-1 if attribute is None else attribute.as_int()]


def _window(context: Context, node_id: int) -> int | None:
    attribute = context.index.nodes[node_id].attributes.get("kernel_shape")
    return None if attribute is None else math.prod(attribute.as_ints())


def _hidden(context: Context, node_id: int) -> int | None:
    weights, recurrence = _input_shape(context, node_id, 1), _input_shape(context, node_id, 2)
    if not weights or not recurrence:
        return None
    return weights[-1] + recurrence[-1]
