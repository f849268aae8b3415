"""What each rounding costs at the outputs: measured local errors times measured amplification.

One FP32 pass measures, for every value, the relative error of rounding it (with the clamp the plan would put on
it), and for every edge, how much of that error a reader passes on: the reader runs once more with that one input
rounded.  From the outputs backwards these gains make the weight of an error anywhere.  Errors of independent
roundings add in squares, so the cost of any plan can then be added up without running it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from converter.compare.tap import held
from converter.formats import FloatFormat
from converter.graph import ModelIndex
from converter.numerics.error_sums import DifferenceNorm
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import Step
from converter.runtime.session import KernelFailure
from converter.runtime.stream import Stream
from converter.runtime.structures import StructureFailure

WEIGHTED = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "FusedMatMul", "FusedConv"))
"""Operators whose constant operand is assumed to pass its relative error on as it is, to save a run."""

MAX_GAIN_SQUARE = 1e12
"""Amplifications beyond a million say "everything" and are not told apart."""

FLIP_WEIGHT = 1e4
"""Weight of a share of changed elements in an output that is no float: one in ten thousand breaks the limit."""

Edge = tuple[int, int, int]
"""(node id, input position, output position)."""


class SensitivityTap:
    """Measures rounding errors of values and what readers make of them, on the reference stream."""

    def __init__(self, index: ModelIndex, fmt: FloatFormat, bounds: Mapping[int, float]) -> None:
        self._index = index
        self._fmt = fmt
        self._bounds = bounds
        self._pending: dict[int, list[tuple[Edge, Any]]] = {}
        self._rounding: dict[int, DifferenceNorm] = {}
        self._edges: dict[Edge, DifferenceNorm] = {}
        self._flips: dict[Edge, tuple[int, int]] = {}
        self._constants: dict[int, float] = {}
        self._run: Interpreter | None = None

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Run the node once for each FP32 input, with only that input rounded."""
        self._run = run
        reference = streams[0]
        feeds = run.gather(reference, step)
        places = [k for k, v in enumerate(step.inputs) if v >= 0]
        for slot, position in enumerate(places):
            value_id = step.inputs[position]
            if not self._index.is_wide(value_id):
                continue
            constant = value_id in self._index.constants
            if constant and step.op_type in WEIGHTED:
                self._constant_error(run, value_id, feeds[slot])
                continue
            rounded = held(run, feeds[slot], self._fmt, self._bounds.get(value_id), clamp_first=True)
            if constant or not np.array_equal(rounded, feeds[slot], equal_nan=True):
                self._perturb(run, step, [*feeds[:slot], rounded, *feeds[slot + 1 :]], position)

    def _perturb(self, run: Interpreter, step: Step, feeds: list[Any], position: int) -> None:
        try:
            results = run.execute(step, feeds)
        except (KernelFailure, StructureFailure):
            return
        made = [(k, v) for k, v in enumerate(step.outputs) if v >= 0]
        for (output, value_id), result in zip(made, results, strict=True):
            self._pending.setdefault(value_id, []).append(((step.node_id, position, output), result))

    def _constant_error(self, run: Interpreter, value_id: int, array: Any) -> None:
        if value_id not in self._constants:
            norm = DifferenceNorm()
            norm.add(array, run.rounding(array, self._fmt))
            self._constants[value_id] = norm.relative() or 0.0

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """Measure the rounding of a value and close the edges that lead to it."""
        reference = values[0]
        if not isinstance(reference, np.ndarray):
            self._pending.pop(value_id, None)
            return
        for edge, result in self._pending.pop(value_id, ()):
            self._close(edge, reference, result)
        if self._index.is_wide(value_id) and self._run is not None:
            rounded = held(self._run, reference, self._fmt, self._bounds.get(value_id), clamp_first=True)
            self._rounding.setdefault(value_id, DifferenceNorm()).add(reference, rounded)

    def _close(self, edge: Edge, reference: Any, result: Any) -> None:
        if not isinstance(result, np.ndarray) or result.shape != reference.shape:
            self._flips[edge] = (1, 1)
        elif reference.dtype.kind == "f":
            self._edges.setdefault(edge, DifferenceNorm()).add(reference, result)
            if bool(np.any(np.isfinite(reference) != np.isfinite(result))):
                self._flips[edge] = (1, 1)
        else:
            changed, total = self._flips.get(edge, (0, 0))
            self._flips[edge] = (changed + int(np.sum(reference != result)), total + reference.size)

    def result(self) -> Sensitivity:
        """Squared relative errors by value and by edge."""
        rounding = {v: _square(norm.relative()) for v, norm in self._rounding.items()}
        edges = {edge: _square(norm.relative()) for edge, norm in self._edges.items()}
        for edge, (changed, total) in self._flips.items():
            edges[edge] = max(edges.get(edge, 0.0), changed / max(total, 1))
        constants = {v: e**2 for v, e in self._constants.items()}
        return Sensitivity(self._index, rounding, edges, constants)


def _square(relative: float | None) -> float:
    return 1.0 if relative is None else min(relative**2, MAX_GAIN_SQUARE)


@dataclass(eq=False)
class Sensitivity:
    """Squared relative errors: of rounding each value, and at a reader's output when one input is rounded."""

    index: ModelIndex
    rounding: Mapping[int, float]
    edges: Mapping[Edge, float]
    constants: Mapping[int, float]
    output_weights: dict[int, float] = field(default_factory=dict)
    """Value id of a graph output -> weight of an error that leaves there."""
    weights: dict[int, float] = field(default_factory=dict)
    """Value id -> squared gain from a relative error there to the outputs, each output in units of its limit."""

    def weigh(self, limits: Mapping[int, float]) -> None:
        """Propagate weights back from the outputs; ``limits`` are the allowed errors by output value id."""
        self.weights.clear()
        self.output_weights.clear()
        for value_id, limit in limits.items():
            floats = self.index.is_float(value_id)
            self.output_weights[value_id] = 1.0 / max(limit, 1e-12) ** 2 if floats else FLIP_WEIGHT
            self._add(value_id, self.output_weights[value_id])
        nodes: list[list[int]] = [[] for _ in self.index.scopes]
        for node_id, scope_id in enumerate(self.index.node_scope):
            nodes[scope_id].append(node_id)
        self._backward(0, nodes)

    def _add(self, value_id: int, weight: float) -> None:
        self.weights[value_id] = self.weights.get(value_id, 0.0) + weight

    def _backward(self, scope_id: int, nodes: list[list[int]]) -> None:
        for node_id in reversed(nodes[scope_id]):
            if self.index.bodies.get(node_id):
                self._through_bodies(node_id, nodes)
                continue
            for position, value_id in enumerate(self.index.inputs[node_id]):
                if value_id >= 0:
                    weight = self.arriving(node_id, position)
                    if weight:
                        self._add(value_id, weight)

    def arriving(self, node_id: int, position: int) -> float:
        """Weight of a relative error of one at an input port."""
        value_id = self.index.inputs[node_id][position]
        error = self.rounding.get(value_id, 0.0)
        total = 0.0
        for output, made in enumerate(self.index.outputs[node_id]):
            weight = self.weights.get(made, 0.0)
            if not weight:
                continue
            passed = self.edges.get((node_id, position, output))
            if passed is not None and error > 0.0:
                total += weight * min(passed / error, MAX_GAIN_SQUARE)
            elif error == 0.0 or value_id in self.index.constants:
                total += weight
        return total

    def cost(self, node_id: int, position: int) -> float:
        """Squared error at the outputs, in units of their limits, of rounding one input of one node."""
        value_id = self.index.inputs[node_id][position]
        total = 0.0
        for output, made in enumerate(self.index.outputs[node_id]):
            weight = self.weights.get(made, 0.0)
            passed = self.edges.get((node_id, position, output))
            if passed is None:
                passed = self.constants.get(value_id, 0.0)
            total += weight * passed
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
                if output + skip < len(leaves) and self.weights.get(made):
                    self._add(leaves[output + skip], self.weights[made])
            self._backward(body, nodes)
            formal = [index.id_of(v) for v in index.scopes[body].graph.inputs]
            outer = _outer_inputs(index, node_id)
            if op_type in ("Loop", "Scan"):
                self._carry(formal, leaves[skip:], len(outer))
                self._forget(body, keep=set(leaves))
                self._backward(body, nodes)
            for inside, value_id in zip(formal[2 if op_type == "Loop" else 0 :], outer, strict=False):
                if value_id >= 0 and self.weights.get(inside):
                    self._add(value_id, self.weights[inside])

    def _forget(self, body: int, keep: set[int]) -> None:
        """Clear a body's weights before it is walked again with the carried states' weights."""
        for value_id in [v for v in self.weights if v not in keep]:
            if body in self.index.enclosing(self.index.value_scope[value_id]):
                del self.weights[value_id]

    def _carry(self, formal: list[int], leaves: list[int], count: int) -> None:
        """What a carried state weighs at the start of an iteration it weighs at the end of the one before."""
        states = formal[-count:] if count else []
        for inside, leaf in zip(states, leaves, strict=False):
            if self.weights.get(inside):
                self.weights[leaf] = max(self.weights.get(leaf, 0.0), self.weights[inside])


def _outer_inputs(index: ModelIndex, node_id: int) -> list[int]:
    inputs = list(index.inputs[node_id])
    op_type = index.nodes[node_id].op_type
    if op_type == "Loop":
        return inputs[2:]
    if op_type == "Scan" and index.version("") < 9:
        return inputs[1:]
    return [] if op_type == "If" else inputs
