"""May a node be narrow: what the ONNX schema at the model's opset allows, port by port."""

from __future__ import annotations

from dataclasses import dataclass

import onnx.defs

from converter.formats import FloatFormat
from converter.graph import ModelIndex
from converter.operators import OperatorSchema, canonical_domain
from converter.policy.kernels import kernel_gap
from converter.types import Evidence, OpPolicy

STRUCTURED = frozenset(("If", "Loop", "Scan", "SequenceMap"))
_ANY_FORMAT = {("Cast", 0), ("CastLike", 0), ("Shape", 0), ("Size", 0)}
"""Ports that take a float as it is stored: no element is computed with."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that may not or should not be narrow: the rule, the reason and the number behind it."""

    node_id: int
    rule: str
    reason: str
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """What a node wants at each port: ``narrow``, ``wide``, ``stored`` (whatever it is) or ``other`` (no FP32)."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def wide_ports(index: ModelIndex, node_id: int, fmt: FloatFormat) -> Ports:
    """The ports of a node that stays FP32 while others become ``fmt``."""
    inputs = tuple(
        _any_or_wide(index, node_id, position, fmt) if index.is_wide(value_id) else "other"
        for position, value_id in enumerate(index.inputs[node_id])
    )
    outputs = tuple("wide" if index.is_wide(v) else "other" for v in index.outputs[node_id])
    return Ports(inputs, outputs)


def _any_or_wide(index: ModelIndex, node_id: int, position: int, fmt: FloatFormat) -> str:
    """``stored`` for ports that never look at an element, if the schema takes the narrow type there."""
    node = index.nodes[node_id]
    if canonical_domain(node.domain) != "" or (node.op_type, position) not in _ANY_FORMAT:
        return "wide"
    schema = index.schema(node_id)
    port = schema.input_port(position) if schema else None
    if schema is None or port is None:
        return "wide"
    return "stored" if schema.allows(port.type_var, fmt.type_string) else "wide"


def narrow_ports(index: ModelIndex, node_id: int, row: OpPolicy | None, fmt: FloatFormat) -> Ports | Refusal:
    """The ports of a node in the narrow format, or why the schema does not allow it."""
    node = index.nodes[node_id]
    schema = index.schema(node_id)
    if schema is None or row is None:
        where = f" of domain '{node.domain}'" if node.domain else ""
        return Refusal(node_id, "unknown", f"operator {node.op_type}{where} is not in the policy table")
    chosen, barred = _narrow_vars(index, node_id, schema, row, fmt)
    if not chosen:
        if barred:
            return Refusal(node_id, "legality", _barred_reason(index, node_id, schema, barred, fmt))
        return Refusal(node_id, "ports", f"{node.op_type} has no FP32 port that should become {fmt.label}")
    if not has_cast(index, fmt):
        reason = f"opset {index.opset} has no Cast to {fmt.label}; opset {first_opset_for(index, node_id, fmt)} has"
        return Refusal(node_id, "legality", reason)
    inputs = tuple(
        _input_want(index, node_id, position, schema, chosen, row, fmt)
        for position in range(len(index.inputs[node_id]))
    )
    outputs = []
    for position, value_id in enumerate(index.outputs[node_id]):
        port = schema.output_port(position)
        narrow = port is not None and port.type_var in chosen
        outputs.append("other" if not index.is_wide(value_id) else "narrow" if narrow else "wide")
    gap = kernel_gap(index, node_id, inputs, outputs, fmt)
    return Refusal(node_id, "kernel", gap) if gap else Ports(inputs, tuple(outputs))


def _narrow_vars(
    index: ModelIndex, node_id: int, schema: OperatorSchema, row: OpPolicy, fmt: FloatFormat
) -> tuple[set[str], list[str]]:
    """Type variables that become narrow, and those that should but may not."""
    wide: dict[str, bool] = {}
    for position, value_id in enumerate(index.outputs[node_id]):
        port = schema.output_port(position)
        if port is not None and index.is_wide(value_id):
            wide[port.type_var] = True
    outputs = set(wide)
    bound = set()
    for position, value_id in enumerate(index.inputs[node_id]):
        port = schema.input_port(position)
        if port is not None and value_id >= 0:
            bound.add(port.type_var)
            if index.is_wide(value_id):
                wide.setdefault(port.type_var, True)
    # A state whose initial value is left out takes the type of the other inputs.
    free = {p.type_var for p in schema.inputs if p.optional} - bound
    wanted = [v for v in wide if v in free or (v in row.narrow_vars if row.narrow_vars else v in outputs)]
    chosen = {v for v in wanted if schema.allows(v, fmt.type_string)}
    barred = [v for v in wanted if v not in chosen]
    if any(v in outputs for v in barred) and not any(v in outputs for v in chosen):
        return set(), barred
    return chosen, barred


def _input_want(
    index: ModelIndex,
    node_id: int,
    position: int,
    schema: OperatorSchema,
    chosen: set[str],
    row: OpPolicy,
    fmt: FloatFormat,
) -> str:
    value_id = index.inputs[node_id][position]
    if not index.is_wide(value_id):
        return "other"
    port = schema.input_port(position)
    loose = _any_or_wide(index, node_id, position, fmt)
    if loose == "stored" or port is None:
        return loose
    if port.name in row.keep_wide and not _bound_elsewhere(schema, port.type_var, position):
        return "wide"
    return "narrow" if port.type_var in chosen else "wide"


def has_own_type(index: ModelIndex, node_id: int, position: int) -> bool:
    """Whether the type of an input of a node is no other port's business."""
    schema = index.schema(node_id)
    port = schema.input_port(position) if schema else None
    return schema is not None and port is not None and not _bound_elsewhere(schema, port.type_var, position)


def _bound_elsewhere(schema: OperatorSchema, type_var: str, position: int) -> bool:
    """Whether another port shares the type variable, so that this one cannot keep a type of its own."""
    others = [p for k, p in enumerate(schema.inputs) if k != position] + list(schema.outputs)
    return any(p.type_var == type_var for p in others)


def _barred_reason(index: ModelIndex, node_id: int, schema: OperatorSchema, barred: list[str], fmt: FloatFormat) -> str:
    first = first_opset_for(index, node_id, fmt)
    newer = f"; it does from opset {first}" if first else ""
    return (
        f"the schema {schema.op_type}-{schema.since_version} does not allow {fmt.label} for {', '.join(barred)}{newer}"
    )


def first_opset_for(index: ModelIndex, node_id: int, fmt: FloatFormat) -> int | None:
    """The first newer opset that has the format and allows it on every FP32 output (or input) of a node.

    A contributed operator has its own versions; for it only the Casts around it may be missing.
    """
    node = index.nodes[node_id]
    contributed = index.schema(node_id) if canonical_domain(node.domain) != "" else None
    for version in range(index.opset + 1, onnx.defs.onnx_opset_version() + 1):
        schema = contributed or index.catalog.find("", node.op_type, version)
        if schema is None or schema.deprecated or (contributed is not None and has_cast(index, fmt)):
            return None
        if not has_cast(index, fmt, version):
            continue
        ports = [schema.output_port(k) for k, v in enumerate(index.outputs[node_id]) if index.is_wide(v)]
        ports = ports or [schema.input_port(k) for k, v in enumerate(index.inputs[node_id]) if index.is_wide(v)]
        if ports and all(p is not None and schema.allows(p.type_var, fmt.type_string) for p in ports):
            return version
    return None


def has_cast(index: ModelIndex, fmt: FloatFormat, opset: int | None = None) -> bool:
    """Whether the opset (the model's when none is given) can cast to a format and back."""
    schema = index.catalog.find("", "Cast", opset or index.opset)
    return schema is not None and all(schema.allows(v, fmt.type_string) for v in ("T1", "T2"))


def float_ports(index: ModelIndex, node_id: int) -> bool:
    """Whether any input or output of a node is an FP32 tensor."""
    return any(index.is_wide(v) for v in (*index.inputs[node_id], *index.outputs[node_id]))


def is_structured(index: ModelIndex, node_id: int) -> bool:
    """Whether a node's bodies are walked and converted."""
    node = index.nodes[node_id]
    return canonical_domain(node.domain) == "" and node.op_type in STRUCTURED
