"""Small inputs for every row: ONNX's own node tests, and hand-written graphs where ONNX has none.

Adding an operator is one row and, when ONNX brings no node test for it, one graph here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray

from converter.formats import FP32
from converter.operators import OperatorSchema
from converter.policy.lookup import policy_for
from converter.policy.table import TABLE
from converter.types import OpClass, OpPolicy

from .schemas import all_schemas, narrow_variables
from .written_inputs import GRAPHS, REFERENCES

Array = NDArray[Any]
Reference = Callable[..., Array]

FLOAT, DOUBLE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
MAX_ELEMENTS = 2000
"""Largest tensor of a case; longer sums would need bounds as wide as the rounding that is to be seen."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One node with inputs, in FP32; ``reference`` computes a contributed operator in float64."""

    name: str
    row: OpPolicy
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    reference: Reference | None = None

    @property
    def node(self) -> onnx.NodeProto:
        return self.model.graph.node[0]

    @property
    def opset(self) -> int:
        return int(next(o.version for o in self.model.opset_import if o.domain == self.row.domain))

    @property
    def elements(self) -> int:
        return sum(feed.size for feed in self.feeds.values())

    @property
    def schema(self) -> OperatorSchema:
        known = all_schemas()[self.row.domain, self.row.op_type]
        return max((s for s in known if s.since_version <= self.opset), key=lambda s: s.since_version)

    def narrow_inputs(self) -> tuple[str, ...]:
        """Names of the FP32 inputs that the row makes narrow."""
        variables = narrow_variables(self.row, self.schema)
        named = ((name, self.schema.input_port(position)) for position, name in enumerate(self.node.input) if name)
        return tuple(
            n for n, port in named if port and port.type_var in variables and self.feeds[n].dtype == FP32.dtype
        )

    def narrow_outputs(self) -> tuple[bool, ...]:
        """For each output the model gives, whether the row makes it narrow."""
        variables = narrow_variables(self.row, self.schema)
        ports = [self.schema.output_port(position) for position, name in enumerate(self.node.output) if name]
        return tuple(port is not None and port.type_var in variables for port in ports)

    @property
    def longest(self) -> int:
        """Elements of the largest input: no sum of the node has more terms."""
        return max((feed.size for feed in self.feeds.values()), default=1)


UNUSABLE = {
    "test_gru_batchwise": "ONNX Runtime has no kernel for layout 1",
    "test_lstm_batchwise": "ONNX Runtime has no kernel for layout 1",
    "test_simple_rnn_batchwise": "ONNX Runtime has no kernel for layout 1",
    "test_resize_downsample_scales_linear_align_corners": "ONNX Runtime and ONNX place the corners differently",
    "test_resize_downsample_scales_cubic_align_corners": "ONNX Runtime and ONNX place the corners differently",
    "test_training_dropout": "training mode scales what it keeps",
    "test_training_dropout_default": "training mode scales what it keeps",
    "test_training_dropout_default_mask": "training mode scales what it keeps",
    "test_training_dropout_mask": "training mode scales what it keeps",
    "test_eyelike_with_dtype": "its dtype attribute asks for double",
    "test_swiglu": "ONNX Runtime 1.32 cannot expand the function body",
    "test_swiglu_alpha": "ONNX Runtime 1.32 cannot expand the function body",
}
"""Node tests of ONNX that no bound can be checked on, with the reason."""

_CONTROL = "its body decides"
_CAST = "changes the type alone, so there is no FP32 in and FP32 out"
_STANDARD_KERNEL = "the operator of the same name in the standard domain is tested in its place"
_HARDWARE_ONLY = "ONNX Runtime has no CPU kernel in FP32"
_COMPOSED = "made of products that have rows of their own, without a float64 reference"
LEFT_OUT = {
    ("", "If"): _CONTROL,
    ("", "Loop"): _CONTROL,
    ("", "Scan"): _CONTROL,
    ("", "Cast"): _CAST,
    ("", "CastLike"): _CAST,
    ("", "Constant"): "holds any value, which is rounded when it is stored",
    ("", "SwiGLU"): "ONNX Runtime 1.32 cannot expand the function body",
    **dict.fromkeys(
        [
            ("com.microsoft", name)
            for name in (
                *("FusedMatMulActivation", "GemmFastGelu", "NhwcConv", "NhwcFusedConv", "PackedAttention"),
                *("PackedMultiHeadAttention", "DecoderMaskedSelfAttention", "DecoderAttention"),
                *("LongformerAttention", "BiasAdd", "BiasSplitGelu", "GroupNorm", "SkipGroupNorm"),
                *("RelativePositionBias", "RemovePadding", "RestorePadding", "SwiGLU"),
            )
        ],
        _HARDWARE_ONLY,
    ),
    **dict.fromkeys(
        [
            ("com.microsoft", name)
            for name in (
                *("MatMulNBits", "MatMulBnb4", "MoE", "Attention"),
                *("DecoderMaskedMultiHeadAttention", "GroupQueryAttention", "SparseAttention"),
            )
        ],
        _COMPOSED,
    ),
    **dict.fromkeys(
        [
            ("com.microsoft", name)
            for name in ("LinearAttention", "CausalConvWithState", "RotaryEmbedding", "ConvTransposeWithDynamicPads")
        ],
        _STANDARD_KERNEL,
    ),
}
"""Rows without a builder, by domain and operator, with the reason."""

_GIVEN: dict[str, Array] = {
    "scales": np.array([1, 1, 2, 2], np.float32),
    "var": np.array([0.5, 1.5, 2.5], np.float32),
    "axis": np.array([1], np.int32),
    "pads": np.array([0, 1, 1, 2], np.int64),
}


def _feed(port: onnx.ValueInfoProto, rng: np.random.Generator) -> Array:
    if port.name in _GIVEN:
        return _GIVEN[port.name]
    shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
    if port.type.tensor_type.elem_type == FLOAT:
        return rng.standard_normal(shape).astype(np.float32)
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape)


def _written_cases() -> Iterator[Case]:
    for name, text in GRAPHS.items():
        model = onnx.parser.parse_model(text)
        node = model.graph.node[0]
        opset = next(o.version for o in model.opset_import if o.domain == node.domain)
        row = policy_for(node.domain, node.op_type, opset)
        assert row is not None, name
        rng = np.random.default_rng(0)
        feeds = {port.name: _feed(port, rng) for port in model.graph.input}
        yield Case(name, row, model, feeds, REFERENCES.get(name))


def _element_types(model: onnx.ModelProto) -> set[int]:
    """Element types of inputs and outputs; 0 for anything that is no tensor."""
    ports = (*model.graph.input, *model.graph.output)
    return {p.type.tensor_type.elem_type if p.type.HasField("tensor_type") else 0 for p in ports}


def retyped(model: onnx.ModelProto, old: int, new: int) -> onnx.ModelProto:
    """A copy whose inputs and outputs of one element type have another."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for port in (*copy.graph.input, *copy.graph.output):
        if port.type.tensor_type.elem_type == old:
            port.type.tensor_type.elem_type = new
    return copy


def _usable(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model with FP32 floats; None when it is no single standard node, or about other types or none."""
    if len(model.graph.node) != 1 or model.graph.node[0].domain:
        return None
    kinds = _element_types(model)
    if 0 in kinds or kinds & {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.STRING}:
        return None
    if FLOAT in kinds:
        return None if DOUBLE in kinds else model
    return retyped(model, DOUBLE, FLOAT) if DOUBLE in kinds else None


def _node_test_cases() -> Iterator[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ONNX's own test scripts divide by zero and overflow on purpose
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    for test in found:
        model = _usable(test.model) if test.model and test.name not in UNUSABLE else None
        if model is None or not test.data_sets:
            continue
        row = policy_for("", model.graph.node[0].op_type, model.opset_import[0].version)
        if row is None or row.op_class is OpClass.WIDE or (row.domain, row.op_type) in LEFT_OUT:
            continue
        feeds = {port.name: np.asarray(v) for port, v in zip(model.graph.input, test.data_sets[0][0], strict=True)}
        feeds = {name: v.astype(np.float32) if v.dtype == np.float64 else v for name, v in feeds.items()}
        yield _with_fractions(Case(test.name, row, model, feeds))


def _with_fractions(case: Case) -> Case:
    """Add noise to narrow inputs that hold integers only, which would round to themselves and prove nothing."""
    rng = np.random.default_rng(0)
    feeds = dict(case.feeds)
    for name in case.narrow_inputs():
        x = feeds[name]
        if np.isfinite(x).all() and (x == np.round(x)).all():
            feeds[name] = np.asarray(x + rng.uniform(-0.5, 0.5, x.shape), np.float32)
    return replace(case, feeds=feeds)


@cache
def cases() -> tuple[Case, ...]:
    """Every case of every row that may be narrow, in the order of the table."""
    found = [case for case in (*_node_test_cases(), *_written_cases()) if case.longest <= MAX_ELEMENTS]
    order = {id(row): position for position, row in enumerate(TABLE)}
    return tuple(sorted(found, key=lambda case: order[id(case.row)]))
