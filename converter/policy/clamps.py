"""Where Clips stand: the three zones of a value's range against the format's maximum."""

from __future__ import annotations

from collections.abc import Iterator

from converter.policy.context import Context
from converter.policy.layout import Layout
from converter.types import ClampSite, OpClass, ValueRange


def clamp_sites(context: Context, layout: Layout, narrow: frozenset[int]) -> tuple[ClampSite, ...]:
    """Clips for values that pass the maximum (``beyond``) or come within the headroom of it (``guard``).

    A value that held a true infinity gets none, and so does one that only moves values which are limited already.
    """
    if context.request.overflow != "clamp":
        return ()
    return (*_behind_nodes(context, layout, narrow), *_before_casts(context, layout))


def zone(context: Context, seen: ValueRange | None) -> str | None:
    """``beyond``, ``guard`` or None for a range; None as well where a true infinity was seen."""
    if seen is None or seen.posinf_count or seen.neginf_count:
        return None
    limit = context.fmt.max_finite
    if seen.absmax > limit:
        return "beyond"
    return "guard" if seen.absmax > limit / context.request.headroom else None


def _site(context: Context, value_id: int, place: str) -> Iterator[ClampSite]:
    seen = context.seen(value_id)
    found = zone(context, seen)
    if found is None or seen is None:
        return
    index = context.index
    producer = index.producer[value_id]
    yield ClampSite(
        value_id=value_id,
        value=index.name_of(value_id),
        node=index.labels[producer] if producer >= 0 else "",
        place=place,
        zone=found,
        bound=context.fmt.max_finite,
        absmax=seen.absmax,
    )


def _behind_nodes(context: Context, layout: Layout, narrow: frozenset[int]) -> Iterator[ClampSite]:
    for node_id in sorted(narrow):
        row = context.row(node_id)
        moves = row is not None and row.op_class is OpClass.EXACT and bool(context.narrow_inputs(node_id))
        if moves:
            continue
        for value_id in context.narrow_outputs(node_id):
            read = context.index.readers[value_id] or context.index.leaves[value_id]
            if read and layout.stored.get(value_id) == context.fmt.name:
                yield from _site(context, value_id, "output")


def _before_casts(context: Context, layout: Layout) -> Iterator[ClampSite]:
    for value_id in sorted({c.value_id for c in layout.casts if c.to == context.fmt.name}):
        yield from _site(context, value_id, "cast")
