"""Does ONNX Runtime load a model, its optimiser switched on?

Its graph optimiser has fusions that do not look at the types of what they join (a layer norm whose scale is FP16 and
whose input is FP32, for instance), so a valid graph can fail to load.  Only loading tells.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from converter.runtime.session import KernelFailure, Threads, WholeModel

MAX_BYTES: Final = 64 * 2**20
MAX_NODES: Final = 5_000
"""Models with more weights or nodes are not loaded whole just to see whether they load: the weights would be in memory
three times, and the optimiser's time grows with the square of the nodes (1 s for 10,000, 4 s for 20,000)."""


def loading_problem(model: ir.Model, threads: Threads) -> str | None:
    """What ONNX Runtime says against a model; None when it loads, or is too large to be tried."""
    values = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    if len(model.graph) > MAX_NODES or sum(int(v.nbytes) for v in values) > MAX_BYTES:
        return None
    try:
        WholeModel(_inline(model), threads, optimise=True)
    except KernelFailure as error:
        return str(error)
    return None


def _inline(model: ir.Model) -> bytes:
    """The model as bytes with all weights inside, external ones included."""
    held = {v: v.const_value for v in model.graph.initializers.values() if isinstance(v.const_value, ir.ExternalTensor)}
    for value, tensor in held.items():
        assert tensor is not None
        value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
    try:
        return bytes(ir.to_proto(model).SerializeToString())
    finally:
        for value, tensor in held.items():
            value.const_value = tensor
