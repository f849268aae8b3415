"""From decisions to formats on every edge: what is stored how, who reads what, where casts stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from converter.formats import FP32, FloatFormat
from converter.graph import ModelIndex
from converter.policy.legality import Ports, is_structured
from converter.types import CastSite


@dataclass(eq=False, slots=True)
class Layout:
    """Formats on the edges of a graph for one set of narrow nodes (see ``PrecisionPlan`` for the fields)."""

    stored: dict[int, str] = field(default_factory=dict)
    reads: dict[tuple[int, int], str] = field(default_factory=dict)
    leaves: dict[tuple[int, int], str] = field(default_factory=dict)
    casts: tuple[CastSite, ...] = ()


def lay_out(index: ModelIndex, ports: list[Ports], fmt: FloatFormat, narrow_io: bool) -> Layout:
    """Lay out formats given every node's ports; O(nodes + edges)."""
    builder = _Builder(index, ports, fmt, narrow_io)
    builder.scope(0)
    builder.layout.casts = _cast_sites(index, builder.layout)
    return builder.layout


class _Builder:
    def __init__(self, index: ModelIndex, ports: list[Ports], fmt: FloatFormat, narrow_io: bool) -> None:
        self.index = index
        self.ports = ports
        self.narrow = fmt.name
        self.fmt = fmt
        self.narrow_io = narrow_io
        self.layout = Layout()
        self._nodes: list[list[int]] = [[] for _ in index.scopes]
        for node_id, scope_id in enumerate(index.node_scope):
            self._nodes[scope_id].append(node_id)

    def scope(self, scope_id: int) -> None:
        graph = self.index.scopes[scope_id].graph
        if scope_id == 0:
            for value in graph.inputs:
                self._store(self.index.id_of(value), self.narrow if self.narrow_io else FP32.name)
        for node_id in self._nodes[scope_id]:
            if is_structured(self.index, node_id):
                getattr(self, f"_{self.index.nodes[node_id].op_type.lower()}")(node_id)
            else:
                self._plain(node_id)
        if scope_id == 0:
            wanted = self.narrow if self.narrow_io else FP32.name
            for position, value in enumerate(graph.outputs):
                self._leave(0, position, self.index.id_of(value), wanted)

    def _store(self, value_id: int, wanted: str) -> None:
        if self.index.is_wide(value_id) and value_id not in self.index.constants:
            self.layout.stored[value_id] = wanted

    def _read(self, node_id: int, position: int, wanted: str) -> None:
        if self.index.is_wide(self.index.inputs[node_id][position]):
            self.layout.reads[node_id, position] = wanted

    def _leave(self, scope_id: int, position: int, value_id: int, wanted: str) -> None:
        if self.index.is_wide(value_id):
            self.layout.leaves[scope_id, position] = wanted

    def _plain(self, node_id: int) -> None:
        ports = self.ports[node_id]
        for position, want in enumerate(ports.inputs):
            if want in ("narrow", "wide"):
                self._read(node_id, position, self.narrow if want == "narrow" else FP32.name)
        for value_id, want in zip(self.index.outputs[node_id], ports.outputs, strict=True):
            self._store(value_id, self.narrow if want == "narrow" else FP32.name)
        for body in self.index.bodies.get(node_id, {}).values():
            self._keep_wide(body)

    def _keep_wide(self, scope_id: int) -> None:
        """Everything inside the body of an operator we do not walk stays as it is."""
        for node_id in self._nodes[scope_id]:
            for position in range(len(self.index.inputs[node_id])):
                self._read(node_id, position, FP32.name)
            for value_id in self.index.outputs[node_id]:
                self._store(value_id, FP32.name)
            for body in self.index.bodies.get(node_id, {}).values():
                self._keep_wide(body)

    def _outputs_of(self, scope_id: int) -> list[int]:
        return [self.index.id_of(v) for v in self.index.scopes[scope_id].graph.outputs]

    def _may_be_narrow(self, node_id: int, position: int) -> bool:
        schema = self.index.schema(node_id)
        port = schema.output_port(position) if schema else None
        return schema is not None and port is not None and schema.allows(port.type_var, self.fmt.type_string)

    def _may_read_narrow(self, node_id: int, position: int) -> bool:
        schema = self.index.schema(node_id)
        port = schema.input_port(position) if schema else None
        return schema is not None and port is not None and schema.allows(port.type_var, self.fmt.type_string)

    def _is_narrow(self, value_id: int) -> bool:
        return self.layout.stored.get(value_id) == self.narrow

    def _if(self, node_id: int) -> None:
        bodies = [self.index.bodies[node_id][name] for name in ("then_branch", "else_branch")]
        for body in bodies:
            self.scope(body)
        for position, value_id in enumerate(self.index.outputs[node_id]):
            made = [self._outputs_of(body)[position] for body in bodies]
            computed = [m for m in made if m not in self.index.constants]
            narrow = bool(computed) and all(self._is_narrow(m) for m in computed)
            narrow = narrow and self._may_be_narrow(node_id, position)
            if self.index.is_wide(value_id):
                self._store(value_id, self.narrow if narrow else FP32.name)
            for body, leaf in zip(bodies, made, strict=True):
                self._leave(body, position, leaf, self.narrow if narrow else FP32.name)

    def _loop(self, node_id: int) -> None:
        body = self.index.bodies[node_id]["body"]
        for value in self.index.scopes[body].graph.inputs:
            self._store(self.index.id_of(value), FP32.name)
        for position in range(2, len(self.index.inputs[node_id])):
            self._read(node_id, position, FP32.name)
        self.scope(body)
        carried = len(self.index.inputs[node_id]) - 2
        self._iterated_outputs(node_id, body, carried, first=1)

    def _scan(self, node_id: int) -> None:
        body = self.index.bodies[node_id]["body"]
        first = 1 if self.index.version("") < 9 else 0
        scanned = self.index.nodes[node_id].attributes["num_scan_inputs"].as_int()
        inputs = self.index.inputs[node_id][first:]
        carried = len(inputs) - scanned
        formal = self.index.scopes[body].graph.inputs
        for position, (value_id, value) in enumerate(zip(inputs, formal, strict=True)):
            inside = self.index.id_of(value)
            if position < carried or not self._may_read_narrow(node_id, first + position):
                self._read(node_id, first + position, FP32.name)
                self._store(inside, FP32.name)
            else:
                self._store(inside, self.layout.stored.get(value_id, FP32.name))
        self.scope(body)
        self._iterated_outputs(node_id, body, carried, first=0)

    def _iterated_outputs(self, node_id: int, body: int, carried: int, first: int) -> None:
        """States keep FP32 from iteration to iteration; stacked outputs are stored as the body makes them."""
        made = self._outputs_of(body)
        for position, leaf in enumerate(made[first:]):
            narrow = position >= carried and self._is_narrow(leaf) and self._may_be_narrow(node_id, position)
            wanted = self.narrow if narrow else FP32.name
            self._leave(body, first + position, leaf, wanted)
            if position < len(self.index.outputs[node_id]):
                self._store(self.index.outputs[node_id][position], wanted)

    def _sequencemap(self, node_id: int) -> None:
        body = self.index.bodies[node_id]["body"]
        for value in self.index.scopes[body].graph.inputs:
            self._store(self.index.id_of(value), FP32.name)
        for position in range(len(self.index.inputs[node_id])):
            self._read(node_id, position, FP32.name)
        self.scope(body)
        for position, leaf in enumerate(self._outputs_of(body)):
            self._leave(body, position, leaf, FP32.name)


def _cast_sites(index: ModelIndex, layout: Layout) -> tuple[CastSite, ...]:
    """One cast per value and target: shared by the readers of a scope and of the bodies inside it."""
    wanted: dict[tuple[int, str], set[int]] = {}

    def note(value_id: int, scope_id: int, to: str) -> None:
        if value_id not in index.constants and layout.stored.get(value_id, to) != to:
            wanted.setdefault((value_id, to), set()).add(scope_id)

    for (node_id, position), to in layout.reads.items():
        note(index.inputs[node_id][position], index.node_scope[node_id], to)
    for (scope_id, position), to in layout.leaves.items():
        note(index.id_of(index.scopes[scope_id].graph.outputs[position]), scope_id, to)
    sites = []
    for (value_id, to), scopes in sorted(wanted.items()):
        for scope_id in sorted(scopes):
            around = list(index.enclosing(scope_id))[1:]
            if not any(s in scopes for s in around):
                sites.append(CastSite(value_id, scope_id, to))
    return tuple(sites)
