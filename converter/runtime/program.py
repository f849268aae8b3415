"""A model compiled for the interpreter: per scope a list of steps, each with what it reads, makes and frees."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from converter.formats import NARROW_FORMATS
from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.runtime.session import Kernel


class StepKind(enum.Enum):
    """How a step is run."""

    KERNEL = "kernel"
    CAST = "cast"
    RANDOM = "random"
    DROPOUT = "dropout"
    STRUCTURE = "structure"
    IF = "if"
    LOOP = "loop"
    SCAN = "scan"
    SEQUENCE_MAP = "sequence map"


_KINDS = {
    "Cast": StepKind.CAST,
    "CastLike": StepKind.CAST,
    "If": StepKind.IF,
    "Loop": StepKind.LOOP,
    "Scan": StepKind.SCAN,
    "SequenceMap": StepKind.SEQUENCE_MAP,
    "Dropout": StepKind.DROPOUT,
} | dict.fromkeys(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),
    StepKind.RANDOM,
)
STRUCTURE_OPERATORS = frozenset(
    (
        "SequenceEmpty", "SequenceConstruct", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength",
        "Optional", "OptionalGetElement", "OptionalHasElement", "Identity",
    )
)  # fmt: skip


WALKED = frozenset((StepKind.IF, StepKind.LOOP, StepKind.SCAN, StepKind.SEQUENCE_MAP))


@dataclass(eq=False, slots=True)
class Step:
    """One node to run.

    ``inputs``/``outputs`` are value ids (-1: left out); ``frees`` are the values nobody reads afterwards.
    ``kernels`` caches sessions by the ranks of the present inputs, or by their shapes for ``picky`` operators that
    build with exact shapes alone.
    """

    node_id: int
    label: str
    op_type: str
    kind: StepKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    node: onnx.NodeProto
    input_types: tuple[str, ...]
    opsets: tuple[tuple[str, int], ...]
    captured: tuple[int, ...] = ()
    frees: tuple[int, ...] = ()
    kernels: dict[tuple[object, ...], Kernel] = field(default_factory=dict)
    picky: bool = False
    present: tuple[int, ...] = ()
    """Value ids of the inputs that are there, in order."""
    made: tuple[int, ...] = ()
    """Value ids of the outputs that are there, in order."""
    walked: bool = False
    """Whether the bodies of this step are run in Python."""

    def __post_init__(self) -> None:
        self.present = tuple(v for v in self.inputs if v >= 0)
        self.made = tuple(v for v in self.outputs if v >= 0)
        self.walked = self.kind in WALKED


@dataclass(eq=False, slots=True)
class Program:
    """All scopes of a model as step lists; ``owned`` are the values each scope makes or takes as inputs."""

    index: ModelIndex
    scopes: list[list[Step]]
    owned: list[list[int]]


def compile_model(index: ModelIndex) -> Program:
    """Compile a typed model; O(nodes + edges)."""
    scopes: list[list[Step]] = [[] for _ in index.scopes]
    for node_id, scope_id in enumerate(index.node_scope):
        if index.outputs[node_id] and index.outputs[node_id][0] in index.constants:
            continue
        if not _inside_opaque_body(index, scope_id):
            scopes[scope_id].append(_step(index, node_id))
    owned: list[list[int]] = [[] for _ in index.scopes]
    for value_id, scope_id in enumerate(index.value_scope):
        if value_id not in index.constants:
            owned[scope_id].append(value_id)
    _plan_frees(index, scopes)
    return Program(index, scopes, owned)


def structured(index: ModelIndex, node_id: int) -> bool:
    """Whether the bodies of a node are walked by the interpreter (and converted), not left to the runtime."""
    node = index.nodes[node_id]
    return canonical_domain(node.domain) == "" and node.op_type in ("If", "Loop", "Scan", "SequenceMap")


def _inside_opaque_body(index: ModelIndex, scope_id: int) -> bool:
    owners = (index.scopes[s].owner for s in index.enclosing(scope_id))
    return any(owner is not None and not structured(index, owner) for owner in owners)


def _step(index: ModelIndex, node_id: int) -> Step:
    node = index.nodes[node_id]
    standard = canonical_domain(node.domain) == ""
    kind = _KINDS.get(node.op_type, StepKind.KERNEL) if standard else StepKind.KERNEL
    if standard and node.op_type in STRUCTURE_OPERATORS:
        kind = StepKind.STRUCTURE
    inputs = index.inputs[node_id]
    captured = _captured(index, node_id) if not structured(index, node_id) else ()
    domain = canonical_domain(node.domain)
    opsets = {"": index.opset, domain: index.version(domain)}
    if captured:
        opsets |= {canonical_domain(d): v for d, v in index.model.opset_imports.items()}
    return Step(
        node_id=node_id,
        label=index.labels[node_id],
        op_type=node.op_type,
        kind=kind,
        inputs=inputs,
        outputs=index.outputs[node_id],
        node=_anonymous(index, node_id, keep_bodies=bool(captured)),
        input_types=tuple(widened(index.types[v]) for v in inputs if v >= 0),
        opsets=tuple(sorted((d, v) for d, v in opsets.items() if v)),
        captured=captured,
    )


def _captured(index: ModelIndex, node_id: int) -> tuple[int, ...]:
    """Outer values that the bodies of a node read."""
    bodies = set(index.bodies.get(node_id, {}).values())
    if not bodies:
        return ()
    inside = {s.id for s in index.scopes if bodies & set(index.enclosing(s.id))}
    found = [
        v
        for v, readers in enumerate(index.readers)
        if index.value_scope[v] not in inside and any(index.node_scope[n] in inside for n, _ in readers)
    ]
    return tuple(found)


def _anonymous(index: ModelIndex, node_id: int, keep_bodies: bool) -> onnx.NodeProto:
    """The node with positional names and every narrow type replaced by FP32: what makes sessions shareable."""
    node = index.nodes[node_id]
    anonymous = onnx.NodeProto(op_type=node.op_type, domain=canonical_domain(node.domain), overload=node.overload)
    anonymous.input.extend(f"i{k}" if v >= 0 else "" for k, v in enumerate(index.inputs[node_id]))
    anonymous.output.extend(f"o{k}" if v >= 0 else "" for k, v in enumerate(index.outputs[node_id]))
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) and not keep_bodies:
            continue
        anonymous.attribute.append(widened_attribute(ir.serde.serialize_attribute(attribute)))
    return anonymous


_TYPE_ATTRIBUTES = frozenset(
    ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision")
)
_NARROW_NUMBERS = frozenset(f.onnx_type for f in NARROW_FORMATS.values())


def widened_attribute(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    """An attribute in which FP16 and BF16 are replaced by FP32."""
    if attribute.type == onnx.AttributeProto.INT and attribute.name in _TYPE_ATTRIBUTES:
        if attribute.i in _NARROW_NUMBERS:
            attribute.i = onnx.TensorProto.FLOAT
    elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _NARROW_NUMBERS:
        wide = onnx.numpy_helper.to_array(attribute.t).astype(np.float32)
        attribute.t.CopyFrom(onnx.numpy_helper.from_array(wide, attribute.t.name))
    return attribute


def widened(type_string: str | None) -> str:
    """A type string with narrow elements replaced by FP32."""
    text = type_string or "tensor(float)"
    for narrow in NARROW_FORMATS.values():
        text = text.replace(f"({narrow.element})", "(float)")
    return text


def _plan_frees(index: ModelIndex, scopes: list[list[Step]]) -> None:
    """Free each value after the last step of its own scope that reads it, itself or in a body."""
    position: dict[int, tuple[int, int]] = {}
    for scope_id, steps in enumerate(scopes):
        for place, step in enumerate(steps):
            position[step.node_id] = (scope_id, place)
    last: dict[int, int] = {}
    for value_id, readers in enumerate(index.readers):
        if value_id in index.constants or index.leaves[value_id]:
            continue
        home = index.value_scope[value_id]
        places = [_place_in(index, position, node_id, home) for node_id, _ in readers]
        known = [p for p in places if p is not None]
        made = position.get(index.producer[value_id])
        if known:
            last[value_id] = max(known)
        elif made is not None:
            last[value_id] = made[1]
    frees: dict[tuple[int, int], list[int]] = {}
    for value_id, place in last.items():
        frees.setdefault((index.value_scope[value_id], place), []).append(value_id)
    for (scope_id, place), values in frees.items():
        scopes[scope_id][place].frees = tuple(values)


def _place_in(index: ModelIndex, position: dict[int, tuple[int, int]], node_id: int, home: int) -> int | None:
    """Position, in scope ``home``, of the step that runs a node or the body the node is in."""
    current: int | None = node_id
    while current is not None:
        scope_id = index.node_scope[current]
        if scope_id == home:
            return position[current][1] if current in position else None
        current = index.scopes[scope_id].owner
    return None


def leaf_bodies(index: ModelIndex, node_id: int) -> dict[str, int]:
    """Body scopes of a structured node by attribute name."""
    return index.bodies.get(node_id, {})


Value = Any
"""An array (narrow formats as float32), a list of arrays, an ``EMPTY`` optional, or a native value."""
