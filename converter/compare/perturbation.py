"""Measuring, on the FP32 stream, what a node makes of an error at one of its inputs.

Two kinds of error travel through a graph.  A rounding is proportional to each element.  A sum over many elements
(a matrix product, a convolution, a mean) turns it into noise that is spread evenly, also over elements that were
small: a logarithm or a division behind it sees something quite different.  Both are measured: the node runs once
more with one input rounded, and, where it is not linear, once with evenly spread noise on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converter.compare.probe import Probe
from converter.compare.regions import find_regions
from converter.compare.sensitivity import MAX_GAIN_SQUARE, Edge, JointGain, Sensitivity
from converter.compare.tap import held
from converter.formats import FloatFormat
from converter.graph import ModelIndex
from converter.numerics.error_sums import DifferenceNorm
from converter.numerics.exact import is_measured
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import Step
from converter.runtime.session import KernelFailure
from converter.runtime.stream import Stream
from converter.runtime.structures import StructureFailure

WEIGHTED = frozenset(("MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "FusedMatMul", "FusedConv"))
"""Operators whose constant operand is assumed to pass its relative error on as it is, to save a run."""

LINEAR = WEIGHTED | frozenset(
    (
        "Add", "Sub", "Neg", "Sum", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Concat",
        "Slice", "Split", "Gather", "Expand", "Tile", "Pad", "Cast", "Resize", "AveragePool", "GlobalAveragePool",
        "ReduceSum", "ReduceMean", "Einsum", "Dropout", "DepthToSpace", "SpaceToDepth",
    )
)  # fmt: skip
"""Operators that pass noise on as they pass roundings on."""

_NOISE_LENGTH = 2**16

_FAR_FROM_END = 1e30
"""Values of a root mean square below this stay finite under noise of any format."""


class PerturbationTap:
    """Collects the errors of rounding values, and what readers make of roundings and of noise."""

    def __init__(self, index: ModelIndex, fmt: FloatFormat, bounds: Mapping[int, float]) -> None:
        self._index = index
        self._fmt = fmt
        self._bounds = bounds
        self._noise = np.random.default_rng(0).standard_normal(_NOISE_LENGTH).astype(np.float32)
        self._pending: dict[int, list[tuple[dict[Edge, DifferenceNorm], Edge, Any]]] = {}
        self._rounding: dict[int, DifferenceNorm] = {}
        self._edges: dict[Edge, DifferenceNorm] = {}
        self._noise_edges: dict[Edge, DifferenceNorm] = {}
        self._flips: dict[Edge, tuple[int, int]] = {}
        self._constants: dict[int, float] = {}
        self._run: Interpreter | None = None
        self._regions = find_regions(index)
        self._probes: list[tuple[Probe, dict[tuple[int, int], DifferenceNorm]]] = []
        self._joint: dict[tuple[int, int], DifferenceNorm] = {}
        self._joint_noise: dict[tuple[int, int], DifferenceNorm] = {}

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Run the node again for each FP32 input, with only that input perturbed."""
        self._run = run
        feeds = run.gather(streams[0], step)
        for probe, _ in self._probes:
            probe.step(run, step, feeds)
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
            self._perturb(run, step, feeds, slot, rounded, (self._edges, position))
            if not constant and step.op_type not in LINEAR:
                self._perturb(run, step, feeds, slot, self._noisy(feeds[slot]), (self._noise_edges, position))

    def _perturb(
        self,
        run: Interpreter,
        step: Step,
        feeds: list[Any],
        slot: int,
        perturbed: Any,
        where: tuple[dict[Edge, DifferenceNorm], int],
    ) -> None:
        try:
            results = run.execute(step, [*feeds[:slot], perturbed, *feeds[slot + 1 :]])
        except (KernelFailure, StructureFailure):
            return
        made = [(k, v) for k, v in enumerate(step.outputs) if v >= 0]
        for (output, value_id), result in zip(made, results, strict=True):
            edge = (step.node_id, where[1], output)
            self._pending.setdefault(value_id, []).append((where[0], edge, result))

    def _noisy(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """The array plus noise of the format's unit roundoff, relative to its root mean square."""
        finite = array[np.isfinite(array)]
        scale = float(np.sqrt(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
        noise = np.resize(self._noise, array.shape)
        # A short sample's own norm is off by a few per cent, which over a thousand nodes would be everything.
        norm = float(np.sqrt(np.mean(np.square(noise, dtype=np.float64)))) if noise.size else 1.0
        with np.errstate(over="ignore"):
            noisy = array + np.float32(scale * self._fmt.unit_roundoff / (norm or 1.0)) * noise
        # Sentinels at FP32's end would become infinite and a fully masked row NaN: they stay as they are.
        return noisy if scale < _FAR_FROM_END else np.where(np.isfinite(noisy), noisy, array)

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
        for norms, edge, result in self._pending.pop(value_id, ()):
            self._close(norms, edge, reference, result)
        for probe, joint in self._probes:
            probe.value(value_id, reference, joint)
        producer = self._index.producer[value_id]
        self._probes = [(p, j) for p, j in self._probes if p.region.end != producer]
        if self._index.is_wide(value_id) and self._run is not None:
            rounded = held(self._run, reference, self._fmt, self._bounds.get(value_id), clamp_first=True)
            self._rounding.setdefault(value_id, DifferenceNorm()).add(reference, rounded)
            self._start_probes(value_id, reference, rounded)

    def _start_probes(self, value_id: int, reference: Any, rounded: Any) -> None:
        """Send the rounding, and noise, through the region of a value that is read more than once."""
        region = self._regions.get(value_id)
        if region is not None:
            self._probes.append((Probe(region, rounded), self._joint))
            self._probes.append((Probe(region, self._noisy(reference)), self._joint_noise))

    def _close(self, norms: dict[Edge, DifferenceNorm], edge: Edge, reference: Any, result: Any) -> None:
        rounded = norms is self._edges
        if not isinstance(result, np.ndarray) or result.shape != reference.shape:
            if rounded:
                self._flips[edge] = (1, 1)
        elif is_measured(reference):
            norms.setdefault(edge, DifferenceNorm()).add(reference, result)
            if rounded and bool(np.any(np.isfinite(reference) != np.isfinite(result))):
                self._flips[edge] = (1, 1)
        elif rounded:
            changed, total = self._flips.get(edge, (0, 0))
            self._flips[edge] = (changed + int(np.sum(reference != result)), total + reference.size)

    def result(self) -> Sensitivity:
        """Squared relative errors by value and by edge, and squared gains of noise."""
        edges = {edge: _square(norm.relative()) for edge, norm in self._edges.items()}
        for edge, (changed, total) in self._flips.items():
            edges[edge] = max(edges.get(edge, 0.0), changed / max(total, 1))
        unit = self._fmt.unit_roundoff**2
        return Sensitivity(
            self._index,
            rounding={v: _square(norm.relative()) for v, norm in self._rounding.items()},
            edges=edges,
            noise_gains={e: min(_square(n.relative()) / unit, MAX_GAIN_SQUARE) for e, n in self._noise_edges.items()},
            constants={v: e**2 for v, e in self._constants.items()},
            joint=self._joint_gains(),
        )

    def _joint_gains(self) -> dict[int, JointGain]:
        """Squared gains from a value to the outputs of its region's end, its readers seeing the same error."""
        gains: dict[int, JointGain] = {}
        unit = self._fmt.unit_roundoff**2
        for value_id, region in self._regions.items():
            error = _square(self._rounding[value_id].relative()) if value_id in self._rounding else 0.0
            outputs = {}
            for made in self._index.outputs[region.end]:
                rounded, noise = self._joint.get((value_id, made)), self._joint_noise.get((value_id, made))
                if rounded is not None and noise is not None and error > 0.0:
                    proportional = min(_square(rounded.relative()) / error, MAX_GAIN_SQUARE)
                    outputs[made] = (proportional, min(_square(noise.relative()) / unit, MAX_GAIN_SQUARE))
            if outputs:
                gains[value_id] = JointGain(region.nodes, outputs)
        return gains


def _square(relative: float | None) -> float:
    return 1.0 if relative is None else min(relative**2, MAX_GAIN_SQUARE)
