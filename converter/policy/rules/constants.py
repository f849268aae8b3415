"""Rule 5, constants: a constant that the format cannot hold keeps its readers FP32; it is never clamped.

Sentinels (rule 4) are the exception: the plan may limit them where they only mean "masked".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from converter.numerics.expectation import expected_output_rounding
from converter.numerics.range_loss import expected_loss, loss_bound
from converter.operators import canonical_domain
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.policy.rules.underflow import LOSS_FACTOR
from converter.types import Evidence


def constants(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes that would read a constant beyond the maximum, or one that underflow would change."""
    for node_id in sorted(narrow):
        found = (*_fill(context, node_id), *_out_of_range(context, node_id), *_lost(context, node_id))
        if found:
            yield found[0]


def _fill(context: Context, node_id: int) -> Iterator[Refusal]:
    """A fill value that is an attribute: of ConstantOfShape, and of Pad before opset 11."""
    node = context.index.nodes[node_id]
    attribute = node.attributes.get("value")
    if node.op_type not in ("ConstantOfShape", "Pad") or attribute is None or canonical_domain(node.domain) != "":
        return
    scalar = float(np.asarray(attribute.as_tensor().numpy() if node.op_type != "Pad" else attribute.as_float()).item())
    limit = context.fmt.max_finite
    label = context.index.labels[node_id]
    if np.isfinite(scalar) and abs(scalar) > limit:
        text = f"its fill value is {scalar:.6g}, {context.fmt.label} ends at {limit:.6g}"
        yield Refusal(node_id, "constants", text, Evidence(label, abs(scalar), limit))
    elif _scalar_loss(context, scalar) > LOSS_FACTOR * expected_output_rounding(context.fmt):
        text = f"its fill value {scalar:.6g} would lose its digits to underflow in {context.fmt.label}"
        yield Refusal(node_id, "constants", text, Evidence(label, abs(scalar), context.fmt.smallest_normal))


def _constant_inputs(context: Context, node_id: int) -> list[int]:
    return [v for v in context.narrow_inputs(node_id) if v in context.index.constants]


def _out_of_range(context: Context, node_id: int) -> Iterator[Refusal]:
    limit = context.fmt.max_finite
    for value_id in _constant_inputs(context, node_id):
        absmax = context.absmax(value_id)
        if absmax is not None and absmax > limit and value_id not in context.saturable(node_id):
            name = context.index.name_of(value_id)
            yield Refusal(
                node_id,
                "constants",
                f"constant '{name}' holds {absmax:.6g}, {context.fmt.label} ends at {limit:.6g}; "
                "a clamped constant would change the model",
                Evidence(name, absmax, limit),
            )


def _lost(context: Context, node_id: int) -> Iterator[Refusal]:
    limit = LOSS_FACTOR * expected_output_rounding(context.fmt)
    for value_id in _constant_inputs(context, node_id):
        if value_id in context.saturable(node_id) or _clearly_kept(context, value_id, limit):
            continue
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


def _clearly_kept(context: Context, value_id: int, limit: float) -> bool:
    """Whether the mean square alone shows that underflow takes less than ``limit``; a single element is exact."""
    surveyed = context.magnitudes(value_id)
    if context.index.constants[value_id].size == 1 or not surveyed.finite:
        return False
    return surveyed.absmax == 0.0 or loss_bound(surveyed.mean_square, context.fmt) <= limit


def _loss(context: Context, value_id: int) -> float:
    """The relative L2 change of a constant: exact for one element, from the histogram for more."""
    scalar = context.scalar(value_id)
    seen = context.seen(value_id)
    assert seen is not None
    if scalar is None:
        return expected_loss(seen, context.fmt)
    return _scalar_loss(context, scalar)


def _scalar_loss(context: Context, scalar: float) -> float:
    """The relative change of one number, on the scale of the mean change of many."""
    if scalar == 0.0 or not np.isfinite(scalar):
        return 0.0
    with np.errstate(over="ignore"):
        rounded = float(np.float32(scalar).astype(context.fmt.dtype).astype(np.float64))
    if not np.isfinite(rounded):
        return 0.0  # beyond the maximum, which is no underflow
    return abs(rounded - scalar) / abs(scalar) * expected_output_rounding(context.fmt) / context.fmt.unit_roundoff
