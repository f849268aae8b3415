"""Operator schemas as plain records, from ONNX and from whoever else knows operators.

Types are ONNX type strings (``tensor(float16)``, ``seq(tensor(float))``).  This file does not know
onnxruntime: its contributed schemas come in as records (``runtime.session.contributed_schemas``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx.defs

STANDARD_DOMAINS = ("", "ai.onnx")


def canonical_domain(domain: str) -> str:
    """The empty string for the standard operator set, whichever of its two names the file uses."""
    return "" if domain in STANDARD_DOMAINS else domain


@dataclass(frozen=True, slots=True)
class Port:
    """One formal input or output of an operator; ``type_var`` is a type variable or a fixed type string."""

    name: str
    type_var: str
    optional: bool = False
    variadic: bool = False
    homogeneous: bool = True


@dataclass(frozen=True)
class OperatorSchema:
    """What one operator takes and gives at one version."""

    domain: str
    op_type: str
    since_version: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    type_vars: Mapping[str, frozenset[str]]
    attributes: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    deprecated: bool = False
    has_function: bool = False

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.inputs)

    def input_port(self, position: int) -> Port | None:
        """The formal input of an actual position; the last one repeats if it is variadic."""
        return _port(self.inputs, position)

    def output_port(self, position: int) -> Port | None:
        """The formal output of an actual position; the last one repeats if it is variadic."""
        return _port(self.outputs, position)

    def allows(self, type_var: str, type_string: str) -> bool:
        """Whether a type variable (or fixed type) may be bound to a type."""
        allowed = self.type_vars.get(type_var)
        return type_string in allowed if allowed is not None else type_var == type_string


def _port(ports: tuple[Port, ...], position: int) -> Port | None:
    if position < len(ports):
        return ports[position]
    return ports[-1] if ports and ports[-1].variadic else None


class OperatorCatalog:
    """Looks up the schema in force for an operator at an opset version.

    ``contributed`` holds schemas of other domains (ONNX Runtime's ``com.microsoft``, for instance).
    """

    def __init__(self, contributed: Iterable[OperatorSchema] = ()) -> None:
        self._waiting = iter(contributed)  # hundreds of schemas, which most models have no use for
        self._contributed: dict[tuple[str, str], list[OperatorSchema]] = {}
        self._found: dict[tuple[str, str, int], OperatorSchema | None] = {}

    def find(self, domain: str, op_type: str, version: int) -> OperatorSchema | None:
        """The schema in force at ``version``; None for an operator nobody knows."""
        key = (canonical_domain(domain), op_type, version)
        if key not in self._found:
            self._found[key] = self._look_up(*key)
        return self._found[key]

    def _look_up(self, domain: str, op_type: str, version: int) -> OperatorSchema | None:
        if onnx.defs.has(op_type, domain) and version >= 1:
            try:
                return from_onnx(onnx.defs.get_schema(op_type, version, domain))
            except onnx.defs.SchemaError:
                return None
        for schema in self._waiting:
            self._contributed.setdefault((schema.domain, schema.op_type), []).append(schema)
        fitting = [s for s in self._contributed.get((domain, op_type), ()) if s.since_version <= version]
        return max(fitting, key=lambda s: s.since_version, default=None)


def from_onnx(schema: onnx.defs.OpSchema) -> OperatorSchema:
    """Copy the parts of an ``onnx.defs.OpSchema`` that conversion needs."""
    option = onnx.defs.OpSchema.FormalParameterOption

    def ports(formal: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[Port, ...]:
        return tuple(
            Port(p.name, p.type_str, p.option == option.Optional, p.option == option.Variadic, p.is_homogeneous)
            for p in formal
        )

    defaults = {
        name: onnx.helper.get_attribute_value(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    return OperatorSchema(
        domain=canonical_domain(schema.domain),
        op_type=schema.name,
        since_version=schema.since_version,
        inputs=ports(schema.inputs),
        outputs=ports(schema.outputs),
        type_vars={c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
        attributes=tuple(schema.attributes),
        defaults=defaults,
        deprecated=schema.deprecated,
        has_function=bool(getattr(schema, "has_function", False))
        or bool(getattr(schema, "has_context_dependent_function", False)),
    )


def standard_operators() -> dict[str, tuple[int, ...]]:
    """Every operator of the standard domain with its versions, oldest first."""
    versions: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if canonical_domain(schema.domain) == "":
            versions.setdefault(schema.name, []).append(schema.since_version)
    return {name: tuple(sorted(found)) for name, found in sorted(versions.items())}
