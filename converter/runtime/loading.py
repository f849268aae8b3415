"""Does ONNX Runtime load a model, its optimiser switched on?

Its graph optimiser has fusions that do not look at the types of what they join (a layer norm whose scale is FP16 and
whose input is FP32, for instance), so a valid graph can fail to load.  Only loading tells.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import onnx_ir as ir

from converter.runtime.session import KernelFailure, Threads, WholeModel

MAX_BYTES: Final = 64 * 2**20
MAX_NODES: Final = 5_000
"""Models with more weights or nodes are not loaded whole just to see whether they load: the weights would be in memory
three times, and the optimiser's time grows with the square of the nodes (1 s for 10,000, 4 s for 20,000)."""


_LOAD: Final = """import resource, sys, onnxruntime
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 4
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""


_CRASHES: Final = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT))
"""Not those that another process sends, for want of memory for instance."""


def loading_problem(model: ir.Model, threads: Threads) -> str | None:
    """What ONNX Runtime says against a model; None when it loads, or is too large to be tried."""
    values = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    if len(model.graph) > MAX_NODES or sum(int(v.nbytes) for v in values) > MAX_BYTES:
        return None
    data = _inline(model)
    signum = _dies(data) if _may_die(model) else 0
    if signum:
        return f"its optimiser ends the process with {signal.Signals(signum).name}"
    try:
        WholeModel(data, threads, optimise=True)
    except KernelFailure as error:
        return str(error)
    return None


def _may_die(model: ir.Model) -> bool:
    """Whether the model has products of transposed values: joined, they have ended processes that load."""
    return any(_is_transposed(value) for node in model.graph if node.op_type == "MatMul" for value in node.inputs)


def _is_transposed(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("Cast", "Mul"):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return node is not None and node.op_type == "Transpose"


def _dies(data: bytes) -> int:
    """The signal with which a process of its own crashes that loads the model; 0 for none."""
    with tempfile.TemporaryDirectory(prefix="narrowcast-") as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _LOAD, str(path)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
            )  # fmt: skip
        except OSError:  # no process to be had here: then it is loaded as any other
            return 0
    return -done.returncode if -done.returncode in _CRASHES else 0


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
