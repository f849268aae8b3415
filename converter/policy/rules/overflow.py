"""Rule 1, visible overflow: values beyond the format's maximum, where a clamp is not wanted or not possible.

Under ``--overflow clamp`` a value beyond the maximum gets a Clip (``policy.clamps``) and the comparison decides.
Under ``--overflow widen``, and wherever the value also held a true infinity (which a Clip would destroy), the
nodes around it stay FP32.
"""

from __future__ import annotations

from collections.abc import Iterable

from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import Evidence


def overflow(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse nodes that read or make values beyond the maximum when no Clip may stand there."""
    limit = context.fmt.max_finite
    for node_id in sorted(narrow):
        for value_id in (*context.narrow_outputs(node_id), *context.narrow_inputs(node_id)):
            seen = None if value_id in context.index.constants else context.seen(value_id)
            if seen is None or seen.absmax <= limit:
                continue
            infinite = seen.posinf_count + seen.neginf_count
            if context.request.overflow == "clamp" and not infinite:
                continue
            name = context.index.name_of(value_id)
            why = "and also holds true infinities, which a clamp would destroy" if infinite else "and clamps are off"
            yield Refusal(
                node_id,
                "overflow",
                f"value '{name}' reaches {seen.absmax:.6g}, {context.fmt.label} ends at {limit:.6g}, {why}",
                Evidence(name, seen.absmax, limit),
            )
            break
