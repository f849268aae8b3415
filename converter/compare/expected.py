"""The error a plan has to cause: the rounding model laid over a graph.

Relative errors of independent roundings add in squares.  A product passes on the errors of all its operands, a
sum at most the largest of them (cancellation is what the model does not expect, and what the report then calls
abnormal); a narrow result adds one rounding.  Where a node's amplification was measured it scales what comes in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from converter.graph import ModelIndex
from converter.numerics.expectation import expected_output_rounding
from converter.operators import canonical_domain
from converter.runtime.formatting import FormatSpec
from converter.types import ErrorFigures

_PRODUCTS = frozenset(
    (
        "Mul", "Div", "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "LSTM", "GRU", "RNN",
        "BatchNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization", "PRelu", "Pow",
    )
)  # fmt: skip


def expected_errors(
    index: ModelIndex, spec: FormatSpec, exact: frozenset[int], gains: Mapping[int, float] | None = None
) -> dict[int, float]:
    """Expected relative L2 error by value id, for every float value.

    ``exact`` are nodes that never round; ``gains`` the measured amplification of nodes (1 where not given).
    """
    model = _Model(index, spec, exact, gains or {})
    for value_id in range(len(index.values)):
        if index.producer[value_id] < 0 and value_id not in index.constants:
            model.square[value_id] = model.own(value_id, rounds=True)
    for node_id in _execution_order(index):
        model.node(node_id)
    return {v: math.sqrt(s) for v, s in model.square.items() if index.is_float(v)}


def measured_gains(
    index: ModelIndex, spec: FormatSpec, exact: frozenset[int], local: Mapping[int, ErrorFigures]
) -> dict[int, float]:
    """Amplification of nodes, from their local errors: what is beyond their own rounding came from their inputs.

    Only nodes that read something rounded can be measured; others pass errors on as they are.  Damping (a gain
    below one) is not counted on: it holds for a node's own small roundings, not for what has piled up before it.
    """
    gains: dict[int, float] = {}
    for node_id, outputs in enumerate(index.outputs):
        seen = [local[v].rel_l2_error for v in outputs if v in local]
        errors = [e for e in seen if e is not None]
        model = _Model(index, spec, exact, {})
        arriving = model.arriving(node_id, alone=True)
        if not errors or arriving <= 0.0:
            continue
        own = max(model.own(v, node_id not in exact) for v in outputs if v >= 0)
        beyond = max(max(errors) ** 2 - own, 0.0)
        gains[node_id] = min(max(math.sqrt(beyond / arriving), 1.0), MAX_GAIN)
    return gains


MAX_GAIN = 1e4
"""A local error that is all of the value says nothing about how small errors grow."""


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

    def __init__(self, index: ModelIndex, spec: FormatSpec, exact: frozenset[int], gains: Mapping[int, float]) -> None:
        self.index = index
        self.spec = spec
        self.exact = exact
        self.gains = gains
        self.square: dict[int, float] = {}

    def own(self, value_id: int, rounds: bool) -> float:
        fmt = self.spec.stored[value_id]
        return expected_output_rounding(fmt) ** 2 if fmt is not None and rounds else 0.0

    def node(self, node_id: int) -> None:
        index = self.index
        bodies = index.bodies.get(node_id)
        if bodies:
            self._hand_on(node_id, list(bodies.values()))
            return
        arriving = self.arriving(node_id) * self.gains.get(node_id, 1.0) ** 2
        for value_id in index.outputs[node_id]:
            if value_id >= 0:
                self.square[value_id] = arriving + self.own(value_id, node_id not in self.exact)

    def arriving(self, node_id: int, alone: bool = False) -> float:
        """Mean square error at a node's inputs; ``alone`` counts what storage and casts round and nothing else."""
        index = self.index
        floats = [(k, v) for k, v in enumerate(index.inputs[node_id]) if index.is_float(v)]
        incoming = [self._read(node_id, k, v, alone) for k, v in floats]
        node = index.nodes[node_id]
        product = canonical_domain(node.domain) != "" or node.op_type in _PRODUCTS
        return sum(incoming) if product else max(incoming, default=0.0)

    def _read(self, node_id: int, position: int, value_id: int, alone: bool) -> float:
        reads = self.spec.reads.get(node_id)
        wanted = reads[position] if reads else None
        arriving = self.own(value_id, rounds=True) if alone else self.square.get(value_id, 0.0)
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
