"""The error a plan has to cause: the rounding model laid over a graph.

Relative errors of independent roundings add in squares.  A product passes on the errors of all its operands, a
sum at most the largest of them (cancellation is what the model does not expect, and what the report then calls
abnormal); a narrow result adds one rounding.  A quantiser turns small errors into a few whole levels, which its
integers carry on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from converter.graph import ModelIndex, holds_floats
from converter.numerics.expectation import expected_output_rounding, expected_quantised
from converter.operators import canonical_domain
from converter.runtime.formatting import FormatSpec
from converter.types import ErrorFigures

_PRODUCTS = frozenset(
    (
        "Mul", "Div", "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN",
        "BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization", "PRelu", "Pow",
    )
)  # fmt: skip

_QUANTISERS = frozenset(("QuantizeLinear", "DynamicQuantizeLinear"))
_LEVEL_BITS = {"2": 2, "4": 4, "4e2m1": 4, "16": 16}
"""Bits of a quantised type by the digits of its name; eight for all others."""


def expected_errors(index: ModelIndex, spec: FormatSpec, exact: frozenset[int]) -> dict[int, float]:
    """Expected relative L2 error by value id, for every float value; ``exact`` are nodes that never round."""
    model = _Model(index, spec, exact)
    for value_id in range(len(index.values)):
        if index.producer[value_id] < 0 and value_id not in index.constants:
            model.square[value_id] = model.own(value_id, rounds=True)
    for node_id in _execution_order(index):
        model.node(node_id)
    return {v: math.sqrt(s) for v, s in model.square.items() if holds_floats(index.types[v])}


def explained_errors(
    index: ModelIndex, spec: FormatSpec, exact: frozenset[int], accumulated: Mapping[int, ErrorFigures]
) -> dict[int, float]:
    """Relative L2 error by value id that a node's inputs and its own rounding explain.

    ``accumulated`` are the measured errors.  Unlike ``expected_errors`` each node starts from what really arrived,
    so that an amplification (or a clamp) shows at the node that makes it and nowhere behind it.
    """
    model = _Model(index, spec, exact)
    model.square = {v: (f.rel_l2_error or 0.0) ** 2 for v, f in accumulated.items()}
    explained: dict[int, float] = {}
    for node_id in _execution_order(index):
        before = {v: model.square[v] for v in index.outputs[node_id] if v in model.square}
        model.node(node_id)
        explained.update((v, math.sqrt(model.square[v])) for v in index.outputs[node_id] if v in model.square)
        model.square.update(before)
    return {v: e for v, e in explained.items() if holds_floats(index.types[v])}


def _execution_order(index: ModelIndex) -> list[int]:
    """Nodes so that bodies come before their owner; the index has owners first."""
    order: list[int] = []
    waiting = [(n, False) for n in reversed(range(len(index.nodes))) if index.node_scope[n] == 0]
    children: dict[int, list[int]] = {}
    for node_id, scope_id in enumerate(index.node_scope):
        owner = index.scopes[scope_id].owner
        if owner is not None:
            children.setdefault(owner, []).append(node_id)
    while waiting:
        node_id, ready = waiting.pop()
        if ready or node_id not in children:
            order.append(node_id)
        else:
            waiting.append((node_id, True))
            waiting.extend((inner, False) for inner in reversed(children[node_id]))
    return order


class _Model:
    """Mean square relative errors, filled in execution order."""

    def __init__(self, index: ModelIndex, spec: FormatSpec, exact: frozenset[int]) -> None:
        self.index = index
        self.spec = spec
        self.exact = exact
        self.square: dict[int, float] = {}
        self.quantised: set[int] = set()
        """Integers that carry the error of what was quantised."""

    def own(self, value_id: int, rounds: bool) -> float:
        fmt = self.spec.stored[value_id]
        return expected_output_rounding(fmt) ** 2 if fmt is not None and rounds else 0.0

    def node(self, node_id: int) -> None:
        index = self.index
        bodies = index.bodies.get(node_id)
        if bodies:
            self._hand_on(node_id, list(bodies.values()))
            return
        arriving = self.arriving(node_id)
        for value_id in index.outputs[node_id]:
            if value_id >= 0:
                self.square[value_id] = arriving + self.own(value_id, node_id not in self.exact)
                self._carry(node_id, value_id)

    def _carry(self, node_id: int, value_id: int) -> None:
        """Let an integer carry an error: a quantiser's result, and what is made from one."""
        index = self.index
        node = index.nodes[node_id]
        if holds_floats(index.types[value_id]):
            return
        if canonical_domain(node.domain) == "" and node.op_type in _QUANTISERS:
            quantised = expected_quantised(math.sqrt(self.square[value_id]), _level_bits(index.types[value_id]))
            self.square[value_id] = quantised**2
            self.quantised.add(value_id)
        elif any(v in self.quantised for v in index.inputs[node_id]):
            self.quantised.add(value_id)

    def arriving(self, node_id: int) -> float:
        """Mean square error at a node's inputs, its casts included."""
        index = self.index
        reads = [(k, v) for k, v in enumerate(index.inputs[node_id]) if v >= 0]
        carrying = [(k, v) for k, v in reads if holds_floats(index.types[v]) or v in self.quantised]
        incoming = [self._read(node_id, k, v) for k, v in carrying]
        node = index.nodes[node_id]
        product = canonical_domain(node.domain) != "" or node.op_type in _PRODUCTS
        return sum(incoming) if product else max(incoming, default=0.0)

    def _read(self, node_id: int, position: int, value_id: int) -> float:
        reads = self.spec.reads.get(node_id)
        wanted = reads[position] if reads else None
        arriving = self.square.get(value_id, 0.0)
        if wanted is not None and self.spec.stored[value_id] is not wanted:
            arriving += expected_output_rounding(wanted) ** 2
        return arriving

    def _hand_on(self, node_id: int, bodies: list[int]) -> None:
        """Outputs of a node with bodies are as wrong as what the bodies hand out."""
        index = self.index
        skip = 1 if index.nodes[node_id].op_type == "Loop" else 0
        for position, value_id in enumerate(index.outputs[node_id]):
            leaves = [index.scopes[b].graph.outputs for b in bodies]
            handed = [index.id_of(g[position + skip]) for g in leaves if position + skip < len(g)]
            if value_id >= 0:
                square = max((self.square.get(h, 0.0) for h in handed), default=0.0)
                self.square[value_id] = square + self.own(value_id, rounds=True)


def _level_bits(type_string: str | None) -> int:
    """Bits of a quantised element type such as ``tensor(uint8)``."""
    name = (type_string or "").removeprefix("tensor(").removesuffix(")")
    digits = name.removeprefix("u").removeprefix("int").removeprefix("float")
    return _LEVEL_BITS.get(digits, 8)
