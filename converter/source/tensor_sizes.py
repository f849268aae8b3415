"""Whether every tensor that lies in the model file holds as much data as its shape asks for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from converter.errors import ModelError

_KNOWN = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}

_FRAME_BYTES = 64
"""Most bytes that tags and lengths take around the fields of a tensor, apart from its dimensions."""


def check_tensors(proto: onnx.ModelProto) -> None:
    """Check initializers and tensor attributes of every scope, without copying weights.

    Raises:
        ModelError: naming the tensor, the bytes (or numbers) it holds and what its shape asks for.
    """
    for tensor in _tensors(proto.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            _check(tensor)


def _tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)


def _check(tensor: TensorProto) -> None:
    title = f"tensor '{tensor.name}' of shape {list(tensor.dims)}"
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"{title} has a negative size; the file is damaged, export the model again")
    if tensor.data_type not in _KNOWN:
        raise ModelError(f"{title} has no known element type ({tensor.data_type}); export the model again")
    size = _element_bytes(tensor.data_type)
    if size is None:
        return
    count = 1
    for d in tensor.dims:
        count *= d
    if tensor.HasField("raw_data"):
        # The length of raw_data without a copy of it: what the tensor takes in the file less all else.
        rest = len(tensor.name.encode()) + len(tensor.doc_string.encode()) + 10 * len(tensor.dims) + _FRAME_BYTES
        held = len(tensor.raw_data) if tensor.ByteSize() < 2**20 else tensor.ByteSize()
        slack = rest if tensor.ByteSize() >= 2**20 else 0
        if not count * size <= held <= count * size + slack:
            raise ModelError(
                f"{title} takes {count * size} bytes and holds {held}; the file is damaged, export the model again"
            )
        return
    held = len(getattr(tensor, onnx.helper.tensor_dtype_to_field(tensor.data_type)))
    if held != count:
        raise ModelError(f"{title} takes {count} numbers and holds {held}; the file is damaged, export the model again")


def _element_bytes(data_type: int) -> int | None:
    """Bytes of one element stored one by one; None for types that are packed, paired, text or unknown."""
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    except (KeyError, TypeError, ValueError):
        return None
    packed = "int4" in dtype.name or "int2" in dtype.name or "float4" in dtype.name
    return None if packed or dtype.kind in "OUSc" else dtype.itemsize
