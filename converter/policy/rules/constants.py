"""Rule 5, constants: a constant that the format cannot hold keeps its readers FP32; it is never clamped.

Sentinels (rule 4) are the exception: the plan may limit them where they only mean "masked".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from converter.numerics.expectation import expected_output_rounding
from converter.numerics.range_loss import expected_loss
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.policy.rules.underflow import LOSS_FACTOR
from converter.types import Evidence


def constants(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes that would read a constant beyond the maximum, or one that underflow would change."""
    for node_id in sorted(narrow):
        refusal = next(_out_of_range(context, node_id), None) or next(_lost(context, node_id), None)
        if refusal is not None:
            yield refusal


def _constant_inputs(context: Context, node_id: int) -> list[int]:
    return [v for v in context.narrow_inputs(node_id) if v in context.index.constants]


def _out_of_range(context: Context, node_id: int) -> Iterator[Refusal]:
    limit = context.fmt.max_finite
    for value_id in _constant_inputs(context, node_id):
        seen = context.seen(value_id)
        if seen is not None and seen.absmax > limit and value_id not in context.saturable(node_id):
            name = context.index.name_of(value_id)
            yield Refusal(
                node_id,
                "constants",
                f"constant '{name}' holds {seen.absmax:.6g}, {context.fmt.label} ends at {limit:.6g}; "
                "a clamped constant would change the model",
                Evidence(name, seen.absmax, limit),
            )


def _lost(context: Context, node_id: int) -> Iterator[Refusal]:
    limit = LOSS_FACTOR * expected_output_rounding(context.fmt)
    for value_id in _constant_inputs(context, node_id):
        seen = context.seen(value_id)
        loss = 0.0 if seen is None else _loss(context, value_id)
        if seen is not None and loss > limit:
            name = context.index.name_of(value_id)
            yield Refusal(
                node_id,
                "constants",
                f"constant '{name}' (absmax {seen.absmax:.3g}) would lose {loss:.2g} of its norm to underflow in "
                f"{context.fmt.label}, against {expected_output_rounding(context.fmt):.2g} for numbers in range",
                Evidence(name, loss, limit),
            )


def _loss(context: Context, value_id: int) -> float:
    """The relative L2 change of a constant: exact for one element, from the histogram for more."""
    scalar = context.scalar(value_id)
    seen = context.seen(value_id)
    assert seen is not None
    if scalar is None:
        return expected_loss(seen, context.fmt)
    if scalar == 0.0 or not np.isfinite(scalar):
        return 0.0
    rounded = float(np.float32(scalar).astype(context.fmt.dtype).astype(np.float64))
    return abs(rounded - scalar) / abs(scalar) * expected_output_rounding(context.fmt) / context.fmt.unit_roundoff
