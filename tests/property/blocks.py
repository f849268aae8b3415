"""The operators that random graphs are made of: one node each, with inputs that are known to work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import NodeProto

from tests.conformance.emulation import Runnable
from tests.policy.op_inputs import cases as narrow_cases
from tests.suite.runner import RANDOM
from tests.suite.runner import cases as node_cases

MAX_ELEMENTS = 400
OPSETS = (11, 12, 13, 15, 17, 18, 20, 21, 22, 23)
_DATA_DEPENDENT = frozenset(
    ("NonZero", "Unique", "NonMaxSuppression", "Compress", "Range", "OneHot", "ConstantOfShape")
)
_STRUCTURED = frozenset(("If", "Loop", "Scan", "SequenceMap", "Constant"))
_CRASHES = frozenset(("EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble"))
"""onnx's checker ends the process where their input's type is not known; tests/source/test_final_check.py has them."""
_SHAPES = frozenset(("float32", "int64", "bool", "int32", "uint8", "int8"))


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A node, the arrays it is fed in its own test, and what it then makes.

    ``fixed`` inputs keep their arrays in every graph: a shape, an index, a scale decides what the node makes.
    """

    name: str
    node: NodeProto
    domain_version: int
    feeds: Mapping[str, Any]
    makes: tuple[Any, ...]
    consumable: bool

    def fits(self, opset: int) -> bool:
        """Whether the node, as it is written, is valid at an opset: same inputs, attributes and defaults."""
        if self.node.domain:
            return True
        try:
            here = onnx.defs.get_schema(self.node.op_type, self.domain_version, "")
            there = onnx.defs.get_schema(self.node.op_type, opset, "")
        except onnx.defs.SchemaError:
            return False
        return not there.deprecated and _text(here, self.node) == _text(there, self.node)


def _text(schema: onnx.defs.OpSchema, node: NodeProto) -> Any:
    """What decides the meaning of a node's text: the formal inputs, used attributes, defaults of the others."""
    used = {a.name for a in node.attribute}
    defaults = {n: a.default_value.SerializeToString() for n, a in schema.attributes.items() if n not in used}
    stated = {n: d for n, d in defaults.items() if d}
    return [p.name for p in schema.inputs], used <= set(schema.attributes), stated


FIXED = frozenset(("scales", "roi", "sizes", "var", "input_var", "variance", "mean", "input_mean", "ratio", "r", "pads",
                   "cos_cache", "sin_cache", "depth", "values", "limit", "start", "delta"))  # fmt: skip
"""Float inputs that always keep the arrays of the node's own test."""


@cache
def blocks() -> tuple[Block, ...]:
    """Small cases of ONNX's node tests and of the policy table's, those that run and need no odd types."""
    found: dict[str, Block] = {}
    for case in (*((c.name, c.model, c.feeds) for c in narrow_cases()), *_wide_cases()):
        block = _block(*case)
        if block is not None:
            found.setdefault(block.name, block)
    return tuple(found[name] for name in sorted(found))


def _wide_cases() -> Any:
    return ((c.name, c.model, c.feeds) for c in node_cases() if "_expanded" not in c.name)


def _block(name: str, model: onnx.ModelProto, feeds: Mapping[str, Any]) -> Block | None:
    if len(model.graph.node) != 1 or model.graph.node[0].op_type in _STRUCTURED | RANDOM | _CRASHES:
        return None
    arrays = [v for v in feeds.values() if isinstance(v, np.ndarray)]
    plain = len(arrays) == len(feeds) and all(a.dtype.name in _SHAPES for a in arrays)
    if not plain or sum(a.size for a in arrays) > MAX_ELEMENTS or "training" in name or "ceil" in name:
        return None
    if not any(a.dtype == np.float32 for a in arrays):
        return None
    try:
        made = tuple(Runnable(model).run(feeds).values())
    except Exception:
        return None
    if not all(isinstance(m, np.ndarray) and m.dtype.name in _SHAPES for m in made):
        return None
    if not _as_inferred(model, made):
        return None
    node = model.graph.node[0]
    version = next(o.version for o in model.opset_import if o.domain == node.domain)
    return Block(name, node, version, feeds, made, node.op_type not in _DATA_DEPENDENT)


def _as_inferred(model: onnx.ModelProto, made: tuple[Any, ...]) -> bool:
    """Whether onnx infers the shapes that come out; where it does not, ONNX Runtime plans its memory wrongly."""
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(bare).graph.output
    except Exception:
        return False
    for output, array in zip(inferred, made, strict=True):
        kind = output.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if kind.HasField("shape") and (
            len(dims) != array.ndim or any(d not in (None, n) for d, n in zip(dims, array.shape, strict=True))
        ):
            return False
    return True


@cache
def fitting(opset: int) -> tuple[tuple[Block, ...], ...]:
    """Blocks for an opset, grouped by operator so that each operator is as likely as any other."""
    groups: dict[tuple[str, str], list[Block]] = {}
    for block in blocks():
        if block.fits(opset):
            groups.setdefault((block.node.domain, block.node.op_type), []).append(block)
    return tuple(tuple(groups[key]) for key in sorted(groups))
