"""Rule 2, underflow: values whose weight lies below what the format holds, and divisors that would vanish."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from converter.numerics.expectation import expected_output_rounding
from converter.numerics.range_loss import expected_loss, flushed_share
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import Evidence

LOSS_FACTOR = 4.0
"""How many times the rounding floor a value may lose: beyond it subnormals carry the value's weight."""


def underflow(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes whose narrow values would lose more than LOSS_FACTOR roundings to underflow."""
    limit = LOSS_FACTOR * expected_output_rounding(context.fmt)
    for node_id in sorted(narrow):
        refusal = next(_lost(context, node_id, limit), None) or next(_divisors(context, node_id), None)
        if refusal is not None:
            yield refusal


def _lost(context: Context, node_id: int, limit: float) -> Iterator[Refusal]:
    for value_id in (*context.narrow_outputs(node_id), *context.narrow_inputs(node_id)):
        seen = None if value_id in context.index.constants else context.seen(value_id)
        if seen is None:
            continue
        loss = expected_loss(seen, context.fmt)
        if loss > limit:
            name = context.index.name_of(value_id)
            share = flushed_share(seen, context.fmt)
            yield Refusal(
                node_id,
                "underflow",
                f"rounding value '{name}' (absmax {seen.absmax:.3g}) to {context.fmt.label} would cost a relative "
                f"error of {loss:.2g}, against {expected_output_rounding(context.fmt):.2g} for numbers in range; "
                f"{share:.1%} of its elements would become zero",
                Evidence(name, loss, limit),
            )


def _divisors(context: Context, node_id: int) -> Iterator[Refusal]:
    """A divisor (or logarithm's argument) that would become zero or subnormal."""
    row = context.row(node_id)
    limit = context.fmt.smallest_normal
    for name in row.nonzero if row else ():
        value_id = context.input_named(node_id, name)
        seen = context.seen(value_id) if value_id >= 0 else None
        if seen is not None and 0 < seen.absmin_nonzero < limit:
            label = context.index.name_of(value_id)
            yield Refusal(
                node_id,
                "underflow",
                f"divisor '{label}' goes down to {seen.absmin_nonzero:.3g}, below {context.fmt.label}'s smallest "
                f"normal {limit:.3g}: it would lose its digits or become zero",
                Evidence(label, seen.absmin_nonzero, limit),
            )
