"""Remove casts that change nothing: from a type to itself.

Nothing else is folded: narrowing and widening again is no identity, it is the very rounding that is measured.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.operators import canonical_domain
from converter.rewrite.base import Draft, Pass


class FoldCasts(Pass):
    """A Cast of the user's whose two sides became one type hands its input to its readers."""

    def apply(self, draft: Draft) -> None:
        """Fold in every scope; a Cast that makes a graph output, or whose input is one, stays."""
        for node in draft.index.nodes:
            if node.graph is None or node.op_type != "Cast" or canonical_domain(node.domain) != "":
                continue
            source, result = node.inputs[0], node.outputs[0]
            if source is None or source.type is None or source.type != result.type or result.is_graph_output():
                continue
            for reader, position in list(result.uses()):
                reader.replace_input_with(position, source)
            graph = node.graph
            if isinstance(graph, ir.Graph):
                graph.remove(node)
