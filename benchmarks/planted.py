"""Graphs with planted precision faults of several kinds, for measuring the search for the FP32 set.

A harmless chain of residual blocks carries pairs of nodes that lose what they should give back when either is
rounded to 16 bits.  No value leaves FP16's range, nothing is subnormal, and no pattern rule names them; node names
carry no hint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 32


@dataclass
class Chain:
    """A graph under construction; ``wide`` collects the nodes that have to stay FP32."""

    seed: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def node(self, kind: str, *inputs: str, wide: bool = False, **attributes: Any) -> str:
        name, output = f"n{len(self.nodes):05d}", f"v{len(self.nodes):05d}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=name, **attributes))
        if wide:
            self.wide.append(name)
        return output


def add_and_subtract(chain: Chain, x: str) -> str:
    """A large offset goes on and comes off again."""
    offset = chain.constant(np.full(WIDTH, chain.rng.uniform(800, 3000) * chain.rng.choice([-1, 1])))
    return chain.node("Sub", chain.node("Add", x, offset, wide=True), offset, wide=True)


def nearly_equal(chain: Chain, x: str) -> str:
    """The difference of two scaled copies that are nearly equal, scaled back."""
    scale = chain.rng.uniform(300, 900)
    first = chain.node("Mul", x, chain.constant(np.full(WIDTH, scale + 1.0)), wide=True)
    second = chain.node("Mul", x, chain.constant(np.full(WIDTH, scale)), wide=True)
    return chain.node("Sub", first, second, wide=True)


def shifted_product(chain: Chain, x: str) -> str:
    """A product around a large mean: (x + k) W - k W."""
    offset = float(chain.rng.uniform(500, 1500))
    q, _ = np.linalg.qr(chain.rng.standard_normal((WIDTH, WIDTH)))
    shifted = chain.node("Add", x, chain.constant(np.full(WIDTH, offset)), wide=True)
    product = chain.node("MatMul", shifted, chain.constant(q), wide=True)
    # The weights' own rounding, times the offset, is subtracted again only when the product reads them in FP32.
    back = (offset * q.astype(np.float32).astype(np.float64).sum(axis=0)).astype(np.float32)
    return chain.node("Sub", product, chain.constant(back), wide=True)


def moved_offset(chain: Chain, x: str) -> str:
    """The first kind with data movement between the two halves."""
    offset = chain.constant(np.full(WIDTH, chain.rng.uniform(800, 3000)))
    moved = chain.node("Transpose", chain.node("Add", x, offset, wide=True), wide=True, perm=[1, 0])
    restored = chain.node("Transpose", moved, wide=True, perm=[1, 0])
    return chain.node("Sub", restored, offset, wide=True)


KINDS: dict[str, Callable[[Chain, str], str]] = {
    "add-subtract": add_and_subtract,
    "nearly-equal": nearly_equal,
    "shifted-product": shifted_product,
    "moved-offset": moved_offset,
}


def planted(seed: int, nodes: int, faults: int, kinds: list[str]) -> tuple[onnx.ModelProto, dict[str, Any], list[str]]:
    """A model with planted faults, a batch, and the names of the nodes that have to stay FP32."""
    chain = Chain(seed)
    rng = chain.rng
    places = set(rng.choice(np.arange(3, max(nodes // 5 - 8, faults + 4)), faults, replace=False).tolist())
    x, block = "x", 0
    while len(chain.nodes) < nodes - 6:
        if block in places:
            x = KINDS[kinds[int(rng.integers(len(kinds)))]](chain, x)
        q, _ = np.linalg.qr(rng.standard_normal((WIDTH, WIDTH)))
        y = chain.node("MatMul", x, chain.constant(q * 0.9))
        y = chain.node("Tanh", chain.node("Add", y, chain.constant(rng.standard_normal(WIDTH) * 0.1)))
        x = chain.node("Add", x, chain.node("Mul", y, chain.constant(np.full(WIDTH, 0.05))))
        block += 1
    chain.nodes[-1].output[0] = "y"
    shape = ["batch", WIDTH]
    graph = helper.make_graph(
        chain.nodes,
        "planted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        chain.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model, {"x": rng.standard_normal((16, WIDTH)).astype(np.float32)}, chain.wide
