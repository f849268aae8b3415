"""Makes models to measure with: transformer-shaped ones of any size, and deep graphs of any number of nodes.

``python -m benchmarks.make_model transformer OUT.onnx --gigabytes 5.36`` writes external data beside the model;
with ``--holes`` the weights are holes in a sparse file (zeros that take no disk).  ``deep OUT.onnx --nodes 10000``
writes a long chain of small layers.  Both are seeded, legal in BF16 as well as FP16 (opset 17 and later), and
come with a sample batch ``OUT.npz``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

ALIGNMENT = 4096
BLOCK = 2**24
"""Random numbers drawn at once; a weight is cut from such a block, so that 20 GB take seconds, not minutes."""

HEADS = 8
VOCABULARY = 1024
TOKENS = 16


@dataclass
class Weights:
    """Writes weights one after the other into one data file."""

    path: Path
    seed: int
    holes: bool
    offset: int = 0
    tensors: list[TensorProto] = field(default_factory=list)

    def __enter__(self) -> Weights:
        self._stream = self.path.open("wb")
        self._block = np.random.default_rng(self.seed).standard_normal(BLOCK, np.float32)
        return self

    def __exit__(self, *failure: object) -> None:
        self._stream.truncate(self.offset)
        self._stream.close()

    def add(self, name: str, shape: tuple[int, ...], scale: float) -> str:
        """Append a weight of normal numbers with a standard deviation; returns its name."""
        size = int(np.prod(shape))
        self.offset += -self.offset % ALIGNMENT
        entries = {"location": self.path.name, "offset": str(self.offset), "length": str(4 * size)}
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.extend(onnx.StringStringEntryProto(key=k, value=v) for k, v in entries.items())
        self.tensors.append(tensor)
        if not self.holes:
            self._stream.seek(self.offset)
            for piece in self._pieces(size, scale):
                self._stream.write(piece.data)
        self.offset += 4 * size
        return name

    def _pieces(self, size: int, scale: float) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        start = (len(self.tensors) * 7919) % (BLOCK // 2)
        while size:
            piece = self._block[start : start + size] * np.float32(scale)
            yield piece
            size -= piece.size
            start = 0


def transformer(path: Path, gigabytes: float, opset: int, seed: int, holes: bool) -> None:
    """A decoder-shaped stack: attention and feed-forward with residuals; the size is that of its FP32 weights."""
    hidden, layers = _shape_for(gigabytes * 1e9 / 4)
    data = path.with_suffix(".data")
    nodes: list[onnx.NodeProto] = []
    with Weights(data, seed, holes) as weights:
        embedding = weights.add("embedding", (VOCABULARY, hidden), 1.0)
        nodes.append(helper.make_node("Gather", [embedding, "tokens"], ["x0"], name="embed"))
        for layer in range(layers):
            nodes += _block(weights, layer, hidden)
        last = f"x{layers}"
        # The head shares the embedding's numbers: tied weights.
        nodes.append(helper.make_node("Transpose", [embedding], ["tied"], name="tie", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [last, "tied"], ["logits"], name="head"))
    shape = [1, TOKENS]
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, shape)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*shape, VOCABULARY])],
        [*weights.tensors, *_constants(hidden)],
    )
    _save(graph, path, opset)
    tokens = np.random.default_rng(seed + 1).integers(0, VOCABULARY, shape)
    np.savez(path.with_suffix(".npz"), tokens=tokens)


def _shape_for(elements: float) -> tuple[int, int]:
    """Hidden size and number of layers of about so many weights."""
    hidden = 512 if elements < 5e7 else 2048
    return hidden, max(1, round((elements - VOCABULARY * hidden) / (12 * hidden**2)))


def _constants(hidden: int) -> list[TensorProto]:
    heads = [1, TOKENS, HEADS, hidden // HEADS]
    return [
        helper.make_tensor("split_heads", TensorProto.INT64, [4], heads),
        helper.make_tensor("join_heads", TensorProto.INT64, [3], [1, TOKENS, hidden]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [(hidden // HEADS) ** -0.5]),
    ]


def _block(weights: Weights, layer: int, hidden: int) -> list[onnx.NodeProto]:
    """Twenty nodes: pre-norm attention and a two-matrix feed-forward."""
    prefix, nodes = f"layer{layer}", []

    def node(op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        output = f"{prefix}/{name}"
        nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attributes))
        return output

    def product(x: str, name: str, rows: int, columns: int) -> str:
        return node("MatMul", [x, weights.add(f"{prefix}/{name}_w", (rows, columns), rows**-0.5)], name)

    def norm(x: str, name: str) -> str:
        gain = weights.add(f"{prefix}/{name}_gain", (hidden,), 0.1)
        bias = weights.add(f"{prefix}/{name}_bias", (hidden,), 0.1)
        return node("LayerNormalization", [x, gain, bias], name, axis=-1)

    def heads(x: str, name: str, permutation: list[int]) -> str:
        return node("Transpose", [node("Reshape", [x, "split_heads"], f"{name}_r")], f"{name}_t", perm=permutation)

    x = f"x{layer}"
    normed = norm(x, "norm1")
    query = heads(product(normed, "q", hidden, hidden), "q", [0, 2, 1, 3])
    key = heads(product(normed, "k", hidden, hidden), "k", [0, 2, 3, 1])
    value = heads(product(normed, "v", hidden, hidden), "v", [0, 2, 1, 3])
    scores = node("Mul", [node("MatMul", [query, key], "scores"), "scale"], "scaled")
    mixed = node("MatMul", [node("Softmax", [scores], "attention", axis=-1), value], "mixed")
    joined = node("Reshape", [node("Transpose", [mixed], "mixed_t", perm=[0, 2, 1, 3]), "join_heads"], "joined")
    after = node("Add", [x, product(joined, "o", hidden, hidden)], "residual1")
    inner = node("Relu", [product(norm(after, "norm2"), "up", hidden, 4 * hidden)], "act")
    last = product(inner, "down", 4 * hidden, hidden)
    nodes.append(helper.make_node("Add", [after, last], [f"x{layer + 1}"], name=f"{prefix}/residual2"))
    return nodes


def deep(path: Path, count: int, opset: int, seed: int, width: int = 16) -> None:
    """A chain of ``count`` nodes: per layer a product, a bias, an activation, a norm and a residual."""
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    tensors: list[TensorProto] = []
    x = "x"

    def weight(name: str, shape: tuple[int, ...], scale: float) -> str:
        tensors.append(onnx.numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), name))
        return name

    for number in range(count):
        layer, kind = divmod(number, 6)
        name, made = f"l{layer}/n{kind}", f"l{layer}/v{kind}"
        if kind == 0:
            start, inputs = x, [x, weight(f"l{layer}/w", (width, width), width**-0.5)]
        elif kind in (1, 3):
            inputs = [x, weight(f"l{layer}/b{kind}", (width,), 0.1)]
        else:
            inputs = [x, start] if kind == 5 else [x]
        op_type = ("MatMul", "Add", "Tanh", "Mul", "Softmax", "Add")[kind]
        nodes.append(helper.make_node(op_type, inputs, [made], name=name))
        x = made
    graph = helper.make_graph(
        nodes,
        "deep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, width])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [4, width])],
        tensors,
    )
    _save(graph, path, opset)
    np.savez(path.with_suffix(".npz"), x=rng.standard_normal((4, width)).astype(np.float32))


def _save(graph: onnx.GraphProto, path: Path, opset: int) -> None:
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=helper.find_min_ir_version_for(opsets))
    path.write_bytes(model.SerializeToString())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=("transformer", "deep"))
    parser.add_argument("output", type=Path)
    parser.add_argument("--gigabytes", type=float, default=0.1)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--holes", action="store_true", help="weights are holes in a sparse file")
    given = parser.parse_args()
    if given.shape == "transformer":
        transformer(given.output, given.gigabytes, given.opset, given.seed, given.holes)
    else:
        deep(given.output, given.nodes, given.opset, given.seed)


if __name__ == "__main__":
    main()
