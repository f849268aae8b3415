"""What every pass shares: the draft under rewrite, fresh names, provenance, and the contract of a pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from converter.errors import InternalError
from converter.formats import FORMATS, FloatFormat
from converter.graph import ModelIndex
from converter.types import PROVENANCE, ConstantChange, PrecisionPlan

_FORMATS = {f.name: f for f in FORMATS}


@dataclass(eq=False)
class Draft:
    """A model being rewritten in place.

    ``index`` still speaks of the given model: its nodes and values live on in the rewritten one.  ``current``
    maps a value id to the value that stands for it where it is stored (behind a Clip, for instance); ``given`` maps
    such a value back.
    """

    index: ModelIndex
    plan: PrecisionPlan
    names: set[str] = field(default_factory=set)
    node_names: set[str] = field(default_factory=set)
    current: dict[int, ir.Value] = field(default_factory=dict)
    given: dict[ir.Value, int] = field(default_factory=dict)
    changed: list[ConstantChange] = field(default_factory=list)
    casts: int = 0
    clamps: int = 0
    bounds: dict[tuple[float, str], ir.Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = {v.name for v in self.index.values if v.name}
        self.node_names = {n.name for n in self.index.nodes if n.name}

    @property
    def model(self) -> ir.Model:
        return self.index.model

    @property
    def fmt(self) -> FloatFormat:
        return _FORMATS[self.plan.to]

    def value(self, value_id: int) -> ir.Value:
        """The value that now stands for a value of the given model."""
        return self.current.get(value_id, self.index.values[value_id])

    def replace(self, value_id: int, value: ir.Value) -> None:
        """Let a value stand for one of the given model."""
        self.current[value_id] = value
        self.given[value] = value_id

    def id_of(self, value: ir.Value) -> int:
        """The value id a value stands for."""
        return self.given.get(value, self.index.id_of(value))

    def fresh(self, wanted: str) -> str:
        """A value name no scope uses yet."""
        return _unique(wanted, self.names)

    def fresh_node(self, wanted: str) -> str:
        """A node name no scope uses yet."""
        return _unique(wanted, self.node_names)


def _unique(wanted: str, taken: set[str]) -> str:
    name, count = wanted, 1
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def tensor_type(name: str) -> ir.TensorType:
    """The tensor type of a format name."""
    fmt = _FORMATS[name]
    assert fmt.onnx_type is not None
    return ir.TensorType(ir.DataType(fmt.onnx_type))


def provenance(rule: str, value: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """``metadata_props`` that say which decision asked for a node."""
    found = {f"{PROVENANCE}.rule": rule, f"{PROVENANCE}.value": value}
    return found | {f"{PROVENANCE}.{key}": text for key, text in (extra or {}).items()}


class Pass(ABC):
    """One step of the rewrite.

    ``apply`` changes the draft; ``ensures`` names what must hold afterwards and raises InternalError where it
    does not: the caller checks the promise, not the author.
    """

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def apply(self, draft: Draft) -> None:
        """Change the draft."""

    def ensures(self, draft: Draft) -> None:
        """Check this pass's own promise."""
        del draft

    def broken(self, message: str) -> InternalError:
        return InternalError(f"pass {self.name} broke its promise: {message}; this is a bug in narrowcast")
