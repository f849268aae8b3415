"""Clips behind narrow nodes whose result passes, or comes near, the maximum."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.formats import FORMATS
from converter.rewrite.base import Draft, Pass, provenance, tensor_type
from converter.types import ClampSite

CLIP_TAKES_INPUTS = 11
"""From this opset on Clip's bounds are inputs; before they are attributes."""

_FORMATS = {f.name: f for f in FORMATS}


class InsertClamps(Pass):
    """Put a Clip behind each planned output; the Clip's result takes over the value's name and readers."""

    def apply(self, draft: Draft) -> None:
        """Insert the ``output`` clamps; those in front of casts come with the casts."""
        for site in draft.plan.clamps:
            if site.place == "output":
                self._behind(draft, site)

    def _behind(self, draft: Draft, site: ClampSite) -> None:
        index = draft.index
        value = index.values[site.value_id]
        producer = value.producer()
        if producer is None:
            raise self.broken(f"value '{site.value}' has no producer to put a Clip behind")
        graph = index.scopes[index.value_scope[site.value_id]].graph
        clipped = clip(draft, value, draft.fmt.name, site)
        name = value.name or ""
        for node, position in list(value.uses()):
            if node is not clipped.producer():
                node.replace_input_with(position, clipped)
        for scope_id, position in index.leaves[site.value_id]:
            outputs = index.scopes[scope_id].graph.outputs
            if outputs[position] is value:
                outputs[position] = clipped
        value.name, clipped.name = draft.fresh(f"{name}_unclamped"), name
        made = clipped.producer()
        assert made is not None
        graph.insert_after(producer, made)
        draft.replace(site.value_id, clipped)


def clip(draft: Draft, source: ir.Value, format_name: str, site: ClampSite) -> ir.Value:
    """A Clip of a value, not yet inserted into a graph; returns its output."""
    draft.clamps += 1
    attributes: list[ir.Attr] = []
    inputs: list[ir.Value | None] = [source]
    if draft.index.opset >= CLIP_TAKES_INPUTS:
        inputs += [_bound(draft, -site.bound, format_name), _bound(draft, site.bound, format_name)]
    else:
        attributes = [ir.AttrFloat32("min", -site.bound), ir.AttrFloat32("max", site.bound)]
    output = ir.Value(
        name=draft.fresh(f"{site.value}_clamped"),
        type=tensor_type(format_name),
        shape=draft.index.values[site.value_id].shape,
    )
    extra = {"zone": site.zone, "absmax": f"{site.absmax:.6g}"}
    ir.Node(
        "",
        "Clip",
        inputs,
        attributes,
        outputs=[output],
        name=draft.fresh_node(f"{site.value}_clamp"),
        metadata_props=provenance("overflow", site.value, extra),
    )
    return output


def _bound(draft: Draft, bound: float, format_name: str) -> ir.Value:
    """A scalar constant of the main graph, shared by all Clips with the same bound."""
    key = (bound, format_name)
    if key not in draft.bounds:
        fmt = _FORMATS[format_name]
        assert fmt.onnx_type is not None
        side = "min" if bound < 0 else "max"
        name = draft.fresh(f"narrowcast_clamp_{side}_{format_name}")
        tensor = ir.Tensor(np.array(bound, np.float32).astype(fmt.dtype), dtype=ir.DataType(fmt.onnx_type), name=name)
        value = ir.Value(name=name, type=tensor_type(format_name), shape=ir.Shape([]), const_value=tensor)
        value.metadata_props.update(provenance("overflow", "", {"constant": "clamp bound"}))
        draft.model.graph.register_initializer(value)
        draft.bounds[key] = value
    return draft.bounds[key]
