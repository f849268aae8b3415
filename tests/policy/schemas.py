"""Schemas for the table's tests: every version a row speaks for, ONNX's and ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import onnx.defs
from onnxruntime.capi import onnxruntime_pybind11_state as native

from converter.formats import BF16, FP16, FP32, FloatFormat
from converter.operators import OperatorSchema, Port, canonical_domain, from_onnx
from converter.policy.table import TABLE
from converter.types import OpClass, OpPolicy

FIRST_OPSET = 7
NEWEST_OPSET = onnx.defs.onnx_opset_version()


@cache
def all_schemas() -> dict[tuple[str, str], tuple[OperatorSchema, ...]]:
    """Every known schema by domain and operator, oldest first; ONNX's own where both know an operator."""
    found: dict[tuple[str, str], list[OperatorSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        record = from_onnx(schema)
        found.setdefault((record.domain, record.op_type), []).append(record)
    standard = set(found)
    for schema in native.get_all_operator_schema():
        key = (canonical_domain(schema.domain), schema.name)
        if key not in standard:
            found.setdefault(key, []).append(_from_runtime(schema))
    return {key: tuple(sorted(known, key=lambda s: s.since_version)) for key, known in found.items()}


def _from_runtime(schema: native.OpSchema) -> OperatorSchema:
    def ports(formal: Iterable[native.OpSchema.FormalParameter]) -> tuple[Port, ...]:
        return tuple(Port(p.name, p.typeStr) for p in formal)

    return OperatorSchema(
        domain=canonical_domain(schema.domain),
        op_type=schema.name,
        since_version=schema.since_version,
        inputs=ports(schema.inputs),
        outputs=ports(schema.outputs),
        type_vars={c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
    )


def in_force(known: Iterable[OperatorSchema], first: int, last: int) -> tuple[OperatorSchema, ...]:
    """The versions that some opset between ``first`` and ``last`` uses."""
    ordered = sorted(known, key=lambda s: s.since_version)
    start = max((s.since_version for s in ordered if s.since_version <= first), default=first)
    return tuple(s for s in ordered if start <= s.since_version <= last)


def row_schemas(row: OpPolicy) -> tuple[OperatorSchema, ...]:
    """Every schema version the row speaks for."""
    known = all_schemas().get((row.domain, row.op_type), ())
    return in_force(known, row.since, NEWEST_OPSET if row.until is None else row.until)


def narrow_variables(row: OpPolicy, schema: OperatorSchema) -> tuple[str, ...]:
    """The type variables that become 16-bit: the row's, or all that a float output may be bound to."""
    if row.narrow_vars:
        return row.narrow_vars
    outputs = dict.fromkeys(port.type_var for port in schema.outputs)
    return tuple(v for v in outputs if schema.allows(v, FP32.type_string))


def allows_narrow(row: OpPolicy, schema: OperatorSchema, fmt: FloatFormat) -> bool:
    variables = narrow_variables(row, schema)
    return bool(variables) and all(schema.allows(v, fmt.type_string) for v in variables)


def legal_since(row: OpPolicy, fmt: FloatFormat) -> int | None:
    """The first opset of the row's bracket at which the schema allows the format; None for never."""
    legal = (s.since_version for s in row_schemas(row) if allows_narrow(row, s, fmt))
    first = min(legal, default=None)
    return None if first is None else max(first, row.since)


def admits_float(schema: OperatorSchema) -> bool:
    """Whether an input or output may be FP32, as a tensor or inside a sequence or an optional."""
    ports = (*schema.inputs, *schema.outputs)
    return any(FP32.type_string in kind for p in ports for kind in schema.type_vars.get(p.type_var, {p.type_var}))


def live_float_operators() -> dict[str, tuple[OperatorSchema, ...]]:
    """Standard operators that are in force and not deprecated at some opset from 7 on, and take or give floats."""
    found = {}
    for (domain, op_type), known in all_schemas().items():
        used = tuple(s for s in in_force(known, FIRST_OPSET, NEWEST_OPSET) if not s.deprecated)
        if domain == "" and onnx.defs.has(op_type) and any(map(admits_float, used)):
            found[op_type] = used
    return found


def legality_text() -> str:
    """From which opset the schemas allow each row's narrow variables to be FP16 and BF16, for the golden file."""
    lines = []
    for row in sorted(TABLE, key=lambda r: (r.domain, r.op_type, r.since)):
        if row.op_class is not OpClass.WIDE:
            bracket = f"{row.since}-{'' if row.until is None else row.until}"
            since = " ".join(f"{f.name}:{legal_since(row, f) or 'never'}" for f in (FP16, BF16))
            lines.append(f"{row.domain or 'ai.onnx'}::{row.op_type} {bracket} {since}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(legality_text(), end="")
