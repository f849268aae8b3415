"""What rules may look at: the graph, what was seen in it, and the policy row of every node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from converter.formats import FP32, NARROW_FORMATS, FloatFormat
from converter.graph import ModelIndex
from converter.policy.legality import Ports, Refusal, has_own_type, narrow_ports, wide_ports
from converter.policy.lookup import policy_for
from converter.policy.rules.unused import unused_nodes, without_readers
from converter.types import ConversionRequest, Magnitudes, OpClass, OpPolicy, ValueRange

HasKernel = Callable[[str, str, int, Mapping[str, str]], bool]
"""(domain, operator, since-version, type by type variable)."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A way out where a runtime's optimiser breaks the first mix of formats of a model.

    ``narrow_scales``: scale and shift of a written-out norm follow its input instead of its statistics.  ``kept``:
    classes of operators that stay FP32.
    """

    kept: frozenset[OpClass] = frozenset()
    narrow_scales: bool = False

    def __str__(self) -> str:
        if not self.kept:
            return "scale and shift of written-out norms follow their input"
        return f"operators of the classes {', '.join(sorted(c.value for c in self.kept))} stay FP32"


Rule = Callable[["Context", frozenset[int]], Iterable[Refusal]]
"""A rule reads the context and the nodes that are still narrow, and refuses some of them."""


@dataclass(eq=False)
class Context:
    """One conversion's evidence.

    ``ranges`` holds what was observed (empty without samples); constants are measured when asked for, the cheap
    figures of many at once by ``survey``, the whole range of one by ``measure``.
    """

    index: ModelIndex
    request: ConversionRequest
    ranges: Mapping[int, ValueRange]
    measure: Callable[[ir.TensorProtocol], ValueRange]
    survey: Callable[[Sequence[ir.TensorProtocol]], Sequence[Magnitudes]]
    has_kernel: HasKernel | None = None
    """Whether the target runs an operator version with these types; None: the target is ``any``."""
    mix: Mix = Mix()
    ports: dict[int, Ports] = field(default_factory=dict)
    illegal: dict[int, Refusal] = field(default_factory=dict)
    sentinels: dict[int, frozenset[int]] = field(default_factory=dict)
    unused: frozenset[int] = frozenset()
    """Nodes that no output depends on; ``index`` leaves them out of the readers of values, ``whole`` does not."""
    _rows: list[OpPolicy | None] = field(default_factory=list)
    _constants: dict[int, ValueRange | None] = field(default_factory=dict)
    _magnitudes: dict[int, Magnitudes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = self.index
        self.unused = unused_nodes(self.whole)
        self.index = index = without_readers(self.whole, self.unused)
        for node in index.nodes:
            self._rows.append(policy_for(node.domain, node.op_type, index.version(node.domain)))
        for node_id, row in enumerate(self._rows):
            found = narrow_ports(index, node_id, row, self.fmt)
            if isinstance(found, Ports) and self.has_kernel is not None and not self._runs_narrow(node_id, found):
                text = (
                    f"target '{self.request.target}' has no {self.fmt.label} kernel for {index.nodes[node_id].op_type}"
                )
                found = Refusal(node_id, "target", text)
            if isinstance(found, Refusal):
                self.illegal[node_id] = found
            else:
                self.ports[node_id] = self._loosened(node_id, found)

    def _loosened(self, node_id: int, ports: Ports) -> Ports:
        """A port with a type of its own stays FP32 where its values do not fit the format: a mask's, for instance."""
        later = range(1, len(ports.inputs))  # the first input's type is the result's too, whatever its variable
        own = [k for k in later if ports.inputs[k] == "narrow" and has_own_type(self.index, node_id, k)]
        wide = {k for k in own if (self.absmax(self.index.inputs[node_id][k]) or 0.0) > self.fmt.max_finite}
        inputs = tuple("wide" if k in wide else want for k, want in enumerate(ports.inputs))
        return Ports(inputs, ports.outputs) if wide and "narrow" in (*inputs, *ports.outputs) else ports

    def _runs_narrow(self, node_id: int, ports: Ports) -> bool:
        """Whether the target has a kernel for a node with these ports narrow."""
        index = self.index
        schema = index.schema(node_id)
        assert schema is not None
        assert self.has_kernel is not None
        types: dict[str, str] = {}
        for k, want in enumerate(ports.inputs):
            port = schema.input_port(k)
            if port is not None and want == "narrow":
                types[port.type_var] = self.fmt.type_string
        for k, want in enumerate(ports.outputs):
            port = schema.output_port(k)
            if port is not None and want == "narrow":
                types[port.type_var] = self.fmt.type_string
        return not types or self.has_kernel(schema.domain, schema.op_type, schema.since_version, types)

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
        return self.measure(tensor)

    def magnitudes(self, value_id: int) -> Magnitudes:
        """How large the elements of an FP32 constant are; all constants are surveyed when the first is asked for."""
        if not self._magnitudes:
            wide = [v for v in self.index.constants if self.index.is_wide(v)]
            found = self.survey([self.index.constants[v] for v in wide])
            self._magnitudes.update(zip(wide, found, strict=True))
        return self._magnitudes[value_id]

    def absmax(self, value_id: int) -> float | None:
        """The largest finite magnitude of an FP32 value, observed or a constant's; None when nothing is known."""
        if value_id in self.index.constants and self.index.is_wide(value_id):
            surveyed = self.magnitudes(value_id)
            if surveyed.finite:
                return surveyed.absmax
        seen = self.seen(value_id)
        return None if seen is None else seen.absmax

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
