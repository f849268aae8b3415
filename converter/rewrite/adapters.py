"""What changes in a node's text when the standard operator set is raised, one adapter per operator and version.

Most version steps only admit more types: a node that is valid at the new version with the same inputs,
attributes and defaults needs no adapter.  An adapter rewrites one node in place and may put nodes in front of it.
Facts are from the ONNX operator changelog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from converter.types import PROVENANCE, RAISED_OPSET


class CannotAdapt(Exception):
    """A node that has no equal at the next version; the text says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """A node to adapt, with a maker of fresh names and the ranks of values whose shape the file does not say."""

    node: ir.Node
    fresh: Callable[[str], str]
    ranks: Mapping[ir.Value, int]

    def rank(self, value: ir.Value) -> int | None:
        return len(value.shape) if value.shape is not None else self.ranks.get(value)

    def constant(self, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
        """A Constant node in front of the node; returns its output."""
        wanted = f"{self.node.name or self.node.op_type}_{name}"
        tensor = ir.tensor(array, name=wanted)
        return self.before("Constant", [], [ir.AttrTensor("value", tensor)], wanted, tensor)

    def before(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        name: str,
        like: ir.TensorProtocol | None = None,
    ) -> ir.Value:
        """A node in front of the node; returns its single output."""
        output = ir.Value(name=self.fresh(name))
        if like is not None:
            output.type, output.shape = ir.TensorType(like.dtype), ir.Shape(like.shape.numpy())
        made = ir.Node("", op_type, list(inputs), list(attributes), outputs=[output], name=self.fresh(f"{name}_node"))
        made.metadata_props[f"{PROVENANCE}.rule"] = RAISED_OPSET
        graph = self.node.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_before(self.node, made)
        return output

    def set_input(self, position: int, value: ir.Value | None) -> None:
        """Set an input, filling up with left-out ones."""
        node = self.node
        if len(node.inputs) <= position:
            node.resize_inputs(position + 1)
        node.replace_input_with(position, value)


Adapter = Callable[[Site], None]


def ints_to_input(name: str, position: int) -> Adapter:
    """An INTS attribute becomes an int64 input; absent stays absent."""

    def adapt(site: Site) -> None:
        attribute = site.node.attributes.pop(name, None)
        if attribute is not None:
            site.set_input(position, site.constant(name, np.array(attribute.as_ints(), np.int64)))

    return adapt


def int_to_input(name: str, position: int, scalar: bool) -> Adapter:
    """An INT attribute becomes an int64 input of rank 0 or 1."""

    def adapt(site: Site) -> None:
        attribute = site.node.attributes.pop(name, None)
        if attribute is not None:
            value = np.array(attribute.as_int(), np.int64)
            site.set_input(position, site.constant(name, value if scalar else value.reshape(1)))

    return adapt


def default_now_explicit(name: str, value: int) -> Adapter:
    """An integer attribute whose default changes is written out."""

    def adapt(site: Site) -> None:
        site.node.attributes.setdefault(name, ir.AttrInt64(name, value))

    return adapt


def _clip(site: Site) -> None:
    for position, name in ((1, "min"), (2, "max")):
        attribute = site.node.attributes.pop(name, None)
        if attribute is not None:
            site.set_input(position, site.constant(name, np.array(attribute.as_float(), np.float32)))


def _pad(site: Site) -> None:
    pads = site.node.attributes.pop("pads").as_ints()
    value = site.node.attributes.pop("value", None)
    site.set_input(1, site.constant("pads", np.array(pads, np.int64)))
    if value is not None and value.as_float() != 0.0:
        site.set_input(2, site.constant("value", np.array(value.as_float(), np.float32)))


def _slice(site: Site) -> None:
    for position, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        attribute = site.node.attributes.pop(name, None)
        if attribute is not None:
            site.set_input(position, site.constant(name, np.array(attribute.as_ints(), np.int64)))


def _flattening(site: Site) -> None:
    """Softmax and its kin worked on a matrix flattened at ``axis``; now they work along one axis."""
    node = site.node
    source = node.inputs[0]
    assert source is not None
    attribute = node.attributes.get("axis")
    axis = 1 if attribute is None else attribute.as_int()
    rank = site.rank(source)
    if axis == -1 or (rank is not None and axis == rank - 1):
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        return
    shape = site.before("Shape", [source], [], f"{source.name}_shape")
    flat = site.before("Flatten", [source], [ir.AttrInt64("axis", axis)], f"{source.name}_flat")
    node.replace_input_with(0, flat)
    node.attributes["axis"] = ir.AttrInt64("axis", -1)
    _reshape_result(site, shape)


def _reshape_result(site: Site, shape: ir.Value) -> None:
    """Put a Reshape behind the node; its result takes over the node's name and readers."""
    node = site.node
    result = node.outputs[0]
    name = result.name or ""
    restored = ir.Value(name=name, type=result.type, shape=result.shape)
    reshape = ir.Node("", "Reshape", [result, shape], outputs=[restored], name=site.fresh(f"{name}_restore"))
    reshape.metadata_props[f"{PROVENANCE}.rule"] = RAISED_OPSET
    for reader, position in list(result.uses()):
        if reader is not reshape:
            reader.replace_input_with(position, restored)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    for position, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[position] = restored
    result.name, result.shape = site.fresh(f"{name}_flat"), None
    graph.insert_after(node, reshape)


def _resize(site: Site) -> None:
    """Resize of opset 10 knew one coordinate rule and one rounding."""
    node = site.node
    scales = node.inputs[1]
    node.resize_inputs(3)
    node.replace_input_with(1, site.constant("roi", np.zeros(0, np.float32)))
    node.replace_input_with(2, scales)
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")


def _upsample_scales(site: Site) -> None:
    scales = site.node.attributes.pop("scales").as_floats()
    site.set_input(1, site.constant("scales", np.array(scales, np.float32)))


def renamed(op_type: str) -> Adapter:
    """An operator that continues under another name."""

    def adapt(site: Site) -> None:
        site.node.op_type = op_type

    return adapt


def _grid_sample(site: Site) -> None:
    mode = site.node.attributes.get("mode")
    words = {"bilinear": "linear", "bicubic": "cubic"}
    if mode is not None and mode.as_string() in words:
        site.node.attributes["mode"] = ir.AttrString("mode", words[mode.as_string()])


def _roi_align(site: Site) -> None:
    name = "coordinate_transformation_mode"
    site.node.attributes.setdefault(name, ir.AttrString(name, "output_half_pixel"))


def _split(site: Site) -> None:
    if len(site.node.inputs) < 2 or site.node.inputs[1] is None:
        site.node.attributes["num_outputs"] = ir.AttrInt64("num_outputs", len(site.node.outputs))


def _batch_normalization_spatial(site: Site) -> None:
    spatial = site.node.attributes.pop("spatial", None)
    if spatial is not None and spatial.as_int() != 1:
        raise CannotAdapt("BatchNormalization with spatial=0 ended with opset 9")


def _batch_normalization_training(site: Site) -> None:
    if any(v.name for v in site.node.outputs[1:]):
        raise CannotAdapt("BatchNormalization's training outputs changed with opset 14")
    site.node.resize_outputs(1)


def _dropout_mask(site: Site) -> None:
    if len(site.node.outputs) > 1 and (site.node.outputs[1].uses() or site.node.outputs[1].is_graph_output()):
        raise CannotAdapt("Dropout's mask became boolean with opset 10")


def _dropout(site: Site) -> None:
    """In inference the ratio has no effect."""
    site.node.attributes.pop("ratio", None)


def _dft(site: Site) -> None:
    attribute = site.node.attributes.pop("axis", None)
    axis = 1 if attribute is None else attribute.as_int()
    site.set_input(2, site.constant("axis", np.array(axis, np.int64)))


def refused(reason: str) -> Adapter:
    """A version step nothing can bridge."""

    def adapt(site: Site) -> None:
        del site
        raise CannotAdapt(reason)

    return adapt


_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
               "ReduceProd", "ReduceSumSquare")  # fmt: skip

ADAPTERS: dict[tuple[str, int], Adapter] = {
    ("BatchNormalization", 9): _batch_normalization_spatial,
    ("BatchNormalization", 14): _batch_normalization_training,
    ("Clip", 11): _clip,
    ("DFT", 20): _dft,
    ("Dropout", 10): _dropout_mask,
    ("Dropout", 12): _dropout,
    ("GridSample", 20): _grid_sample,
    ("Hardmax", 13): _flattening,
    ("LogSoftmax", 13): _flattening,
    ("Pad", 11): _pad,
    ("ReduceSum", 13): ints_to_input("axes", 1),
    ("Resize", 11): _resize,
    ("RoiAlign", 16): _roi_align,
    ("Scan", 9): refused("Scan lost its batch axis with opset 9"),
    ("Scatter", 11): renamed("ScatterElements"),
    ("Slice", 10): _slice,
    ("Softmax", 13): _flattening,
    ("Split", 13): ints_to_input("split", 1),
    ("Split", 18): _split,
    ("Squeeze", 13): ints_to_input("axes", 1),
    ("TopK", 10): int_to_input("k", 1, scalar=False),
    ("Unsqueeze", 13): ints_to_input("axes", 1),
    ("Upsample", 9): _upsample_scales,
    ("Upsample", 10): renamed("Resize"),
} | {(op_type, 18): ints_to_input("axes", 1) for op_type in _REDUCTIONS}
"""(operator, version at which its text changes) -> adapter from the version before."""
