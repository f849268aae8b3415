"""Casts where formats meet: one per value and target, shared within a scope and by the bodies inside it."""

from __future__ import annotations

import onnx_ir as ir

from converter.formats import FORMATS, FP32
from converter.rewrite.base import Draft, Pass, provenance, tensor_type
from converter.rewrite.insert_clamps import clip
from converter.types import CastSite, ClampSite

_FORMATS = {f.name: f for f in FORMATS}


class InsertCasts(Pass):
    """Insert every planned cast and connect its readers; public output names stay with the public type."""

    def apply(self, draft: Draft) -> None:
        """Insert casts with the Clips in front of them, then rewire readers and graph outputs."""
        clamps = {c.value_id: c for c in draft.plan.clamps if c.place == "cast"}
        made: dict[tuple[int, str, int], ir.Value] = {}
        for site in draft.plan.casts:
            made[site.value_id, site.to, site.scope_id] = self._insert(draft, site, clamps)
        for (node_id, position), wanted in draft.plan.reads.items():
            value_id = draft.index.inputs[node_id][position]
            cast = _nearest(draft, made, value_id, wanted, draft.index.node_scope[node_id])
            if cast is not None:
                draft.index.nodes[node_id].replace_input_with(position, cast)
        for (scope_id, position), wanted in draft.plan.leaves.items():
            graph = draft.index.scopes[scope_id].graph
            value_id = draft.id_of(graph.outputs[position])
            cast = _nearest(draft, made, value_id, wanted, scope_id)
            if cast is not None:
                _give_away_name(draft, value_id, graph, position, cast, public=scope_id == 0)

    def _insert(self, draft: Draft, site: CastSite, clamps: dict[int, ClampSite]) -> ir.Value:
        index = draft.index
        source = draft.value(site.value_id)
        graph = index.scopes[site.scope_id].graph
        nodes: list[ir.Node] = []
        given = index.values[site.value_id].name or source.name or ""
        clamp = clamps.get(site.value_id)
        if clamp is not None and site.to != FP32.name:
            source = clip(draft, source, FP32.name, clamp)
            producer = source.producer()
            assert producer is not None
            nodes.append(producer)
        target = _FORMATS[site.to].onnx_type
        assert target is not None
        name = source.name or given if clamp is None else given
        output = ir.Value(name=draft.fresh(f"{name}_{site.to}"), type=tensor_type(site.to), shape=source.shape)
        nodes.append(
            ir.Node(
                "",
                "Cast",
                [source],
                [ir.AttrInt64("to", target)],
                outputs=[output],
                name=draft.fresh_node(f"{name}_to_{site.to}"),
                metadata_props=provenance("cast", given),
            )
        )
        draft.casts += 1
        maker = draft.value(site.value_id).producer()
        if maker is not None and maker.graph is graph:
            graph.insert_after(maker, nodes)
        elif len(graph):
            graph.insert_before(graph[0], nodes)
        else:
            graph.extend(nodes)
        return output


def _nearest(
    draft: Draft, made: dict[tuple[int, str, int], ir.Value], value_id: int, wanted: str, scope_id: int
) -> ir.Value | None:
    """The cast of a value that a reader in a scope sees; None where it reads the value as it is."""
    if draft.plan.stored.get(value_id, wanted) == wanted:
        return None
    for scope in draft.index.enclosing(scope_id):
        found = made.get((value_id, wanted, scope))
        if found is not None:
            return found
    return None


def _give_away_name(draft: Draft, value_id: int, graph: ir.Graph, position: int, cast: ir.Value, public: bool) -> None:
    """Make a cast the graph output; in the main graph it takes the public name."""
    inner = draft.value(value_id)
    declared = graph.outputs[position]
    renamed = cast.is_graph_output()  # the same value stands twice among the outputs
    graph.outputs[position] = cast
    if cast.shape is None:
        cast.shape = declared.shape
    if public and inner.name and not renamed:
        name = inner.name
        inner.name = draft.fresh(f"{name}_{draft.plan.stored[value_id]}")
        cast.name = name
