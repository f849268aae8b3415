"""What rules may look at: the graph, what was seen in it, and the policy row of every node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from converter.formats import FP32, NARROW_FORMATS, FloatFormat
from converter.graph import ModelIndex
from converter.policy.legality import Ports, Refusal, narrow_ports, wide_ports
from converter.policy.lookup import policy_for
from converter.types import ConversionRequest, OpPolicy, ValueRange

Rule = Callable[["Context", frozenset[int]], Iterable[Refusal]]
"""A rule reads the context and the nodes that are still narrow, and refuses some of them."""


@dataclass(eq=False)
class Context:
    """One conversion's evidence.

    ``ranges`` holds what was observed (empty without samples); constants are measured when asked for.
    ``measure`` turns a constant's array into a ValueRange.
    """

    index: ModelIndex
    request: ConversionRequest
    ranges: Mapping[int, ValueRange]
    measure: Callable[[np.ndarray[tuple[int, ...], np.dtype[np.generic]]], ValueRange]
    ports: dict[int, Ports] = field(default_factory=dict)
    illegal: dict[int, Refusal] = field(default_factory=dict)
    sentinels: dict[int, frozenset[int]] = field(default_factory=dict)
    _rows: list[OpPolicy | None] = field(default_factory=list)
    _constants: dict[int, ValueRange | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index = self.index
        for node in index.nodes:
            self._rows.append(policy_for(node.domain, node.op_type, index.version(node.domain)))
        for node_id, row in enumerate(self._rows):
            found = narrow_ports(index, node_id, row, self.fmt)
            if isinstance(found, Refusal):
                self.illegal[node_id] = found
            else:
                self.ports[node_id] = found

    @property
    def fmt(self) -> FloatFormat:
        return NARROW_FORMATS[self.request.to]

    def row(self, node_id: int) -> OpPolicy | None:
        """The policy row of a node; None for an operator the table does not know."""
        return self._rows[node_id]

    def wide_ports(self, node_id: int) -> Ports:
        return wide_ports(self.index, node_id, self.fmt)

    def seen(self, value_id: int) -> ValueRange | None:
        """The range of a value: observed, or a constant's own; None when nothing is known."""
        if value_id in self.ranges:
            return self.ranges[value_id]
        if value_id not in self._constants:
            self._constants[value_id] = self._measure_constant(value_id)
        return self._constants[value_id]

    def _measure_constant(self, value_id: int) -> ValueRange | None:
        tensor = self.index.constants.get(value_id)
        if tensor is None or self.index.types[value_id] != FP32.type_string:
            return None
        return self.measure(tensor.numpy())

    def scalar(self, value_id: int) -> float | None:
        """The value of a constant with one element."""
        tensor = self.index.constants.get(value_id)
        if tensor is None or tensor.size != 1:
            return None
        return float(np.asarray(tensor.numpy(), np.float64).reshape(-1)[0])

    def input_named(self, node_id: int, name: str) -> int:
        """Value id of the input a schema calls ``name``; -1 when left out or unknown."""
        schema = self.index.schema(node_id)
        if schema is None:
            return -1
        for position, value_id in enumerate(self.index.inputs[node_id]):
            port = schema.input_port(position)
            if port is not None and port.name == name:
                return value_id
        return -1

    def narrow_inputs(self, node_id: int) -> list[int]:
        """Values a node would read in the narrow format."""
        ports = self.ports[node_id]
        return [v for v, want in zip(self.index.inputs[node_id], ports.inputs, strict=True) if want == "narrow"]

    def narrow_outputs(self, node_id: int) -> list[int]:
        """Values a node would make in the narrow format."""
        ports = self.ports[node_id]
        return [v for v, want in zip(self.index.outputs[node_id], ports.outputs, strict=True) if want == "narrow"]

    def float_producers(self, node_id: int) -> Iterable[int]:
        """Nodes that make the FP32 inputs of a node."""
        for value_id in self.index.inputs[node_id]:
            if self.index.is_wide(value_id) and self.index.producer[value_id] >= 0:
                yield self.index.producer[value_id]

    def float_consumers(self, node_id: int) -> Iterable[int]:
        """Nodes that read the FP32 outputs of a node."""
        for value_id in self.index.outputs[node_id]:
            if self.index.is_wide(value_id):
                for reader, _ in self.index.readers[value_id]:
                    yield reader

    def saturable(self, node_id: int) -> frozenset[int]:
        """Constant inputs of a node that only mean "masked" and may be limited (decided by the sentinel rule)."""
        return self.sentinels.get(node_id, frozenset())

    def small_product(self, node_id: int) -> bool:
        """Whether a matrix product has a constant operand and an inner dimension of one: an outer product."""
        inputs = self.index.inputs[node_id][:2]
        constant = [v for v in inputs if v in self.index.constants]
        others = [self.seen(v) for v in inputs if v not in self.index.constants]
        return bool(constant) and all(s is not None and s.shape and s.shape[-1] <= 4 for s in others)
