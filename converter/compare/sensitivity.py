"""What each rounding costs at the outputs: measured local errors times measured amplification.

``perturbation`` measures, in one FP32 pass, the relative error of rounding every value and what each reader makes
of it.  From the outputs backwards these gains make the weight of an error anywhere, separately for errors that are
proportional to each element and for noise that a mixing operator has spread evenly.  Errors of independent
roundings add in squares, so the cost of any plan can then be added up without running it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from converter.graph import ModelIndex, holds_floats

MIXING = frozenset(
    (
        "MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "FusedMatMul", "FusedConv", "Einsum",
        "Attention", "AveragePool", "GlobalAveragePool", "ReduceSum", "ReduceMean", "ReduceL2", "ReduceL1",
        "ReduceSumSquare", "ReduceLogSumExp", "LpPool", "CumSum", "DFT", "STFT", "Resize", "DeformConv",
    )
)  # fmt: skip
"""Operators that sum over many elements: what comes out is spread noise, whatever went in."""

MAX_GAIN_SQUARE = 1e12
"""Amplifications beyond a million say "everything" and are not told apart."""

FLIP_WEIGHT = 1e4
"""Weight of a share of changed elements in an output that is no float: one in ten thousand breaks the limit."""

Edge = tuple[int, int, int]
"""(node id, input position, output position)."""


@dataclass(frozen=True, slots=True)
class JointGain:
    """Squared gains of an error that all readers of a value see, to where their paths meet.

    ``outputs``: value made there -> (gain of a proportional error, gain of spread noise).
    """

    nodes: frozenset[int]
    outputs: Mapping[int, tuple[float, float]]


@dataclass(eq=False)
class Sensitivity:
    """Squared relative errors: of rounding each value, and at a reader's output when one input is rounded.

    ``noise_gains`` are squared gains of evenly spread noise, for readers that are not linear.
    """

    index: ModelIndex
    rounding: Mapping[int, float]
    edges: Mapping[Edge, float]
    noise_gains: Mapping[Edge, float]
    constants: Mapping[int, float]
    joint: Mapping[int, JointGain] = field(default_factory=dict)
    output_weights: dict[int, float] = field(default_factory=dict)
    """Value id of a graph output -> weight of an error that leaves there."""
    weights: dict[int, float] = field(default_factory=dict)
    """Value id -> squared gain of an error proportional to each element there, to the outputs, in units of their
    limits."""
    spread: dict[int, float] = field(default_factory=dict)
    """The same for evenly spread noise."""

    def weigh(self, limits: Mapping[int, float]) -> None:
        """Propagate weights back from the outputs; ``limits`` are the allowed errors by output value id."""
        for weights in (self.weights, self.spread, self.output_weights):
            weights.clear()
        for value_id, limit in limits.items():
            floats = holds_floats(self.index.types[value_id])
            self.output_weights[value_id] = 1.0 / max(limit, 1e-12) ** 2 if floats else FLIP_WEIGHT
            self._add(value_id, self.output_weights[value_id], self.output_weights[value_id])
        nodes: list[list[int]] = [[] for _ in self.index.scopes]
        for node_id, scope_id in enumerate(self.index.node_scope):
            nodes[scope_id].append(node_id)
        self._backward(0, nodes)

    def _add(self, value_id: int, weight: float, spread: float) -> None:
        if weight:
            self.weights[value_id] = self.weights.get(value_id, 0.0) + weight
        if spread:
            self.spread[value_id] = self.spread.get(value_id, 0.0) + spread

    def _backward(self, scope_id: int, nodes: list[list[int]]) -> None:
        for node_id in reversed(nodes[scope_id]):
            for value_id in self.index.outputs[node_id]:
                self._see_jointly(value_id)
            if self.index.bodies.get(node_id):
                self._through_bodies(node_id, nodes)
                continue
            for position, value_id in enumerate(self.index.inputs[node_id]):
                if value_id >= 0:
                    self._add(value_id, *self._arriving(node_id, position))

    def _see_jointly(self, value_id: int) -> None:
        """Replace the edge-by-edge weights of a value by those of its whole region, once all its readers are done."""
        gain = self.joint.get(value_id)
        if gain is None:
            return
        mixes = any(self.index.nodes[n].op_type in MIXING for n in gain.nodes)
        behind = self.spread if mixes else self.weights
        self.weights[value_id] = sum(g * behind.get(made, 0.0) for made, (g, _) in gain.outputs.items())
        self.spread[value_id] = sum(g * self.spread.get(made, 0.0) for made, (_, g) in gain.outputs.items())

    def _after(self, node_id: int, made: int) -> float:
        """Weight, behind a node, of what a proportional error at its input becomes."""
        mixes = self.index.nodes[node_id].op_type in MIXING
        return (self.spread if mixes else self.weights).get(made, 0.0)

    def _arriving(self, node_id: int, position: int) -> tuple[float, float]:
        """Weights, at an input port, of a relative error of one: proportional, and spread."""
        value_id = self.index.inputs[node_id][position]
        error = self.rounding.get(value_id, 0.0)
        proportional = spread = 0.0
        for output, made in enumerate(self.index.outputs[node_id]):
            edge = (node_id, position, output)
            passed = self.edges.get(edge)
            gain = 1.0
            if passed is not None and error > 0.0:
                gain = min(passed / error, MAX_GAIN_SQUARE)
            elif passed is None and value_id not in self.index.constants:
                gain = 0.0
            proportional += gain * self._after(node_id, made)
            spread += self.noise_gains.get(edge, gain) * self.spread.get(made, 0.0)
        return proportional, spread

    def cost(self, node_id: int, position: int) -> float:
        """Squared error at the outputs, in units of their limits, of rounding one input of one node."""
        value_id = self.index.inputs[node_id][position]
        total = 0.0
        for output, made in enumerate(self.index.outputs[node_id]):
            passed = self.edges.get((node_id, position, output))
            if passed is None:
                passed = self.constants.get(value_id, 0.0)
            total += passed * self._after(node_id, made)
        return total

    def stored_cost(self, value_id: int) -> float:
        """Squared error at the outputs of storing a value rounded."""
        return self.rounding.get(value_id, 0.0) * self.weights.get(value_id, 0.0)

    def _through_bodies(self, node_id: int, nodes: list[list[int]]) -> None:
        """Hand weights from a node's outputs to its bodies' leaves, and from formal inputs to outer values."""
        index = self.index
        op_type = index.nodes[node_id].op_type
        skip = 1 if op_type == "Loop" else 0
        for body in index.bodies[node_id].values():
            leaves = [index.id_of(v) for v in index.scopes[body].graph.outputs]
            for output, made in enumerate(index.outputs[node_id]):
                if output + skip < len(leaves):
                    self._hand(made, leaves[output + skip])
            self._backward(body, nodes)
            formal = [index.id_of(v) for v in index.scopes[body].graph.inputs]
            outer = _outer_inputs(index, node_id)
            if op_type in ("Loop", "Scan"):
                self._carry(formal, leaves[skip:], len(outer))
                self._forget(body, keep=set(leaves))
                self._backward(body, nodes)
            for inside, value_id in zip(formal[2 if op_type == "Loop" else 0 :], outer, strict=False):
                if value_id >= 0:
                    self._hand(inside, value_id)

    def _hand(self, source: int, target: int) -> None:
        self._add(target, self.weights.get(source, 0.0), self.spread.get(source, 0.0))

    def _carry(self, formal: list[int], leaves: list[int], count: int) -> None:
        """What a carried state weighs at the start of an iteration it weighs at the end of the one before."""
        states = formal[-count:] if count else []
        for inside, leaf in zip(states, leaves, strict=False):
            for weights in (self.weights, self.spread):
                if weights.get(inside):
                    weights[leaf] = max(weights.get(leaf, 0.0), weights[inside])

    def _forget(self, body: int, keep: set[int]) -> None:
        """Clear a body's weights before it is walked again with the carried states' weights."""
        inside = {s.id for s in self.index.scopes if body in self.index.enclosing(s.id)}
        for weights in (self.weights, self.spread):
            for value_id in [v for v in weights if v not in keep and self.index.value_scope[v] in inside]:
                del weights[value_id]


def _outer_inputs(index: ModelIndex, node_id: int) -> list[int]:
    inputs = list(index.inputs[node_id])
    op_type = index.nodes[node_id].op_type
    if op_type == "Loop":
        return inputs[2:]
    if op_type == "Scan" and index.version("") < 9:
        return inputs[1:]
    return [] if op_type == "If" else inputs
