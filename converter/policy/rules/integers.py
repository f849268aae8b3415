"""Rule 3, integers and coordinates as floats.

Narrow formats have no odd integers above their largest exact one (2048 in FP16, 256 in BF16).  Numbers that
came from integers and pass it (positions, ids, time stamps, box offsets) must not be rounded before an operator
that looks at differences: a phase of Sin, a Floor, a comparison, a subtraction of coordinates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from converter.operators import canonical_domain
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import Evidence, OpClass, ValueRange

SENSITIVE = frozenset(
    (
        "Sin", "Cos", "Tan", "Floor", "Ceil", "Round", "Mod", "Equal", "Greater", "Less", "GreaterOrEqual",
        "LessOrEqual", "NonMaxSuppression", "GridSample", "RoiAlign", "Sub", "OneHot",
    )
)  # fmt: skip
"""Operators whose result depends on small differences between large inputs."""

_SOURCES = frozenset(("Cast", "Range", "CastLike"))


def integers(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse the sources, their direct readers, and every path from a source to a sensitive operator."""
    index = context.index
    limit = context.fmt.largest_exact_integer
    origin: dict[int, tuple[int, ValueRange]] = {}
    for value_id in range(len(index.values)):
        seen = _inexact_source(context, value_id)
        if seen is not None:
            origin[value_id] = (value_id, seen)
    if not origin:
        return
    reached = _flow(context, dict(origin))
    kept = _towards_sensitive(context, reached)
    for node_id in sorted(narrow):
        touched = [v for v in (*index.inputs[node_id], *index.outputs[node_id]) if v in reached]
        direct = [v for v in touched if v in origin]
        if not direct and node_id not in kept:
            continue
        source, seen = reached[(direct or touched)[0]]
        name = index.name_of(source)
        yield Refusal(
            node_id,
            "integers",
            f"value '{name}' holds integers up to {seen.absmax:.6g}; {context.fmt.label} is exact up to {limit} only"
            + ("" if direct else " and this path ends in an operator that sees small differences"),
            Evidence(name, seen.absmax, float(limit)),
        )


def _inexact_source(context: Context, value_id: int) -> ValueRange | None:
    """The range of a float made from integers (in any type but FP32 and the narrow ones) beyond the largest exact."""
    index = context.index
    producer = index.producer[value_id]
    if producer < 0 or not index.is_wide(value_id) or index.nodes[producer].op_type not in _SOURCES:
        return None
    from_floats = any(index.is_float(v) for v in index.inputs[producer][:1])
    if index.nodes[producer].op_type != "Range" and from_floats:
        return None
    seen = context.seen(value_id)
    if seen is None or seen.absmax <= context.fmt.largest_exact_integer:
        return None
    return seen if seen.integral or index.nodes[producer].op_type == "Range" else None


def _flow(context: Context, origin: dict[int, tuple[int, ValueRange]]) -> dict[int, tuple[int, ValueRange]]:
    """Values computed from the sources by elementwise arithmetic, movement and products with constants."""
    reached = dict(origin)
    waiting = deque(origin)
    while waiting:
        value_id = waiting.popleft()
        for node_id, _ in context.index.readers[value_id]:
            if not _carries(context, node_id):
                continue
            for made in context.index.outputs[node_id]:
                if context.index.is_wide(made) and made not in reached:
                    reached[made] = reached[value_id]
                    waiting.append(made)
    return reached


def _carries(context: Context, node_id: int) -> bool:
    """Whether an operator passes coordinates on: it follows or moves, or multiplies by constants only."""
    row = context.row(node_id)
    node = context.index.nodes[node_id]
    if (
        row is None
        or canonical_domain(node.domain) != ""
        or node.op_type in SENSITIVE - {"Sub", "Floor", "Round", "Ceil"}
    ):
        return False
    if row.op_class in (OpClass.FOLLOW, OpClass.EXACT):
        return True
    return node.op_type in ("MatMul", "Einsum", "Gemm") and context.small_product(node_id)


def _towards_sensitive(context: Context, reached: dict[int, tuple[int, ValueRange]]) -> set[int]:
    """Nodes on a path of reached values that ends in a sensitive operator, that operator included."""
    index = context.index
    waiting: deque[int] = deque()
    kept: set[int] = set()
    for value_id in reached:
        seen = context.seen(value_id)
        for node_id, _ in index.readers[value_id]:
            large = seen is not None and seen.absmax > context.fmt.largest_exact_integer / 64
            if index.nodes[node_id].op_type in SENSITIVE and large and node_id not in kept:
                kept.add(node_id)
                waiting.append(node_id)
    while waiting:
        node_id = waiting.popleft()
        for value_id in index.inputs[node_id]:
            producer = index.producer[value_id] if value_id >= 0 else -1
            if value_id in reached and producer >= 0 and producer not in kept:
                kept.add(producer)
                waiting.append(producer)
    return kept
