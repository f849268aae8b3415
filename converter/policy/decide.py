"""The decision: every node gets a format, a rule and a reason; every edge a format; every risk a Clip.

Pure: model, ranges, table and request in, ``PrecisionPlan`` out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from converter.formats import FP32
from converter.policy.clamps import clamp_sites
from converter.policy.context import Context, Rule
from converter.policy.layout import Layout, lay_out
from converter.policy.legality import Ports, Refusal, float_ports, is_structured
from converter.policy.rules.casts import paying_casts, smaller_side
from converter.policy.rules.constants import constants
from converter.policy.rules.eps_division import eps_division
from converter.policy.rules.hidden_range import hidden_range
from converter.policy.rules.integers import integers
from converter.policy.rules.islands import islands
from converter.policy.rules.logarithms import logarithms
from converter.policy.rules.loop_carried import loop_carried
from converter.policy.rules.norm_patterns import norm_patterns
from converter.policy.rules.overflow import overflow
from converter.policy.rules.overrides import matched_nodes
from converter.policy.rules.provenance import provenance
from converter.policy.rules.residual import residual
from converter.policy.rules.sentinels import limited_sentinels, saturable_inputs
from converter.policy.rules.underflow import underflow
from converter.policy.rules.unused import unused
from converter.types import Decision, OpClass, PolicyOverride, PrecisionPlan

RULES: tuple[Rule, ...] = (
    provenance,
    unused,
    overflow,
    residual,
    constants,
    integers,
    eps_division,
    norm_patterns,
    logarithms,
    hidden_range,
    underflow,
    loop_carried,
)
"""In this order; the first refusal of a node is its reason."""


def decide(context: Context, widened: Mapping[int, Refusal] | None = None) -> PrecisionPlan:
    """Decide every node; ``widened`` are nodes that repair or search keep FP32, with their reasons.

    Raises:
        OptionError: an override matches nothing.
    """
    overrides = matched_nodes(context.index, context.request.overrides)
    sentinels = limited_sentinels(context)
    context.sentinels.update(saturable_inputs(context, sentinels))
    refused = _refusals(context, overrides, dict(widened or {}))
    candidates = _candidates(context, _forced(overrides))
    narrow = frozenset(n for n in candidates if n not in refused)
    narrow, refused = _settle(context, narrow, refused, frozenset(overrides))
    ports = [_ports(context, n, narrow) for n in range(len(context.index.nodes))]
    layout = lay_out(context.whole, ports, context.fmt, context.request.io_types == "narrow")
    return PrecisionPlan(
        to=context.fmt.name,
        decisions=tuple(_decision(context, n, narrow, refused, overrides) for n in range(len(context.index.nodes))),
        stored=layout.stored,
        reads=layout.reads,
        leaves=layout.leaves,
        casts=layout.casts,
        clamps=clamp_sites(context, layout, narrow),
        saturated_constants=_read_narrow(context, sentinels, layout),
    )


def _read_narrow(context: Context, sentinels: Mapping[int, float], layout: Layout) -> dict[int, float]:
    """Limited sentinels that some reader takes in the narrow format; elsewhere they stay what they are."""
    wanted = {context.index.inputs[n][k] for (n, k), to in layout.reads.items() if to == context.fmt.name}
    return {v: bound for v, bound in sentinels.items() if v in wanted}


def _forced(overrides: Mapping[int, PolicyOverride]) -> frozenset[int]:
    """Nodes the user wants narrow."""
    return frozenset(n for n, o in overrides.items() if o.format != FP32.name)


def _candidates(context: Context, forced: frozenset[int]) -> frozenset[int]:
    """Nodes the table or the user would narrow and the schema allows."""
    found = set()
    for node_id in context.ports:
        row = context.row(node_id)
        ports = context.ports[node_id]
        wanted = node_id in forced or (row is not None and row.op_class is not OpClass.WIDE)
        wanted = wanted and "narrow" in (*ports.inputs, *ports.outputs)
        if wanted and float_ports(context.index, node_id) and not _untouched(context, node_id):
            found.add(node_id)
    return frozenset(found)


def _untouched(context: Context, node_id: int) -> bool:
    """Nodes without a decision of their own: constants, walked bodies' owners, insides of opaque bodies."""
    index = context.index
    outputs = index.outputs[node_id]
    if is_structured(index, node_id) or (outputs and outputs[0] in index.constants):
        return True
    owners = (index.scopes[s].owner for s in index.enclosing(index.node_scope[node_id]))
    return any(owner is not None and not is_structured(index, owner) for owner in owners)


def _refusals(
    context: Context, overrides: Mapping[int, PolicyOverride], refused: dict[int, Refusal]
) -> dict[int, Refusal]:
    forced = _forced(overrides)
    for node_id, override in overrides.items():
        if override.format == FP32.name:
            refused[node_id] = Refusal(node_id, "override", f"kept FP32 by {override.origin or 'an override'}")
    narrow = _candidates(context, forced)
    for node_id in narrow - forced:
        row = context.row(node_id)
        if row is not None and row.op_class in context.mix.kept:
            text = "ONNX Runtime's optimiser makes an invalid model of a finer mix of formats (measured by loading it)"
            refused.setdefault(node_id, Refusal(node_id, "loads", text))
    for rule in RULES:
        left = frozenset(n for n in narrow if n not in refused and n not in forced)
        for refusal in rule(context, left):
            refused.setdefault(refusal.node_id, refusal)
    return refused


def _settle(
    context: Context, narrow: frozenset[int], refused: dict[int, Refusal], forced: frozenset[int]
) -> tuple[frozenset[int], dict[int, Refusal]]:
    """Apply what depends on neighbours: readers without a float result, casts of the user's, and islands."""
    for step in (_lone_readers, islands, smaller_side, paying_casts, islands, _lone_readers, _lone_widenings):
        for refusal in list(step(context, narrow)):
            if refusal.node_id not in forced:
                refused.setdefault(refusal.node_id, refusal)
        narrow = frozenset(n for n in narrow if n not in refused)
    return narrow, refused


def _lone_readers(context: Context, narrow: frozenset[int]) -> list[Refusal]:
    """Operators that make no float (comparisons, tests) read narrow only what is stored narrow anyway."""
    found = []
    for node_id in sorted(narrow):
        if any(context.index.is_wide(v) for v in context.index.outputs[node_id]):
            continue
        for value_id in context.narrow_inputs(node_id):
            producer = context.index.producer[value_id]
            if value_id in context.index.constants:
                same = _exact_constant(context, value_id)
            else:
                same = producer in narrow and value_id in context.narrow_outputs(producer)
            if not same:
                name = context.index.name_of(value_id)
                found.append(Refusal(node_id, "readers", f"makes no float and reads '{name}', which is FP32"))
                break
    return found


def _lone_widenings(context: Context, narrow: frozenset[int]) -> list[Refusal]:
    """The user's casts from a narrow format to FP32 stay where nothing narrow reads their result."""
    index = context.index
    found = []
    for node_id in sorted(narrow):
        if index.nodes[node_id].op_type not in ("Cast", "CastLike"):
            continue
        source, result = index.inputs[node_id][0], index.outputs[node_id][0]
        readers = [n for n, k in index.readers[result] if n in narrow and context.ports[n].inputs[k] == "narrow"]
        leaves_narrow = context.request.io_types == "narrow" and any(scope == 0 for scope, _ in index.leaves[result])
        if index.is_float(source) and not index.is_wide(source) and not readers and not leaves_narrow:
            reason = "widens a value that is narrow already, for FP32 readers only"
            found.append(Refusal(node_id, "islands", reason))
    return found


def _exact_constant(context: Context, value_id: int) -> bool:
    array = np.asarray(context.index.constants[value_id].numpy(), np.float32)
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array.astype(context.fmt.dtype).astype(np.float32), array, equal_nan=True))


def _ports(context: Context, node_id: int, narrow: frozenset[int]) -> Ports:
    return context.ports[node_id] if node_id in narrow else context.wide_ports(node_id)


def _decision(
    context: Context,
    node_id: int,
    narrow: frozenset[int],
    refused: Mapping[int, Refusal],
    overrides: Mapping[int, PolicyOverride],
) -> Decision:
    index = context.index
    label, op_type = index.labels[node_id], index.nodes[node_id].op_type
    row = context.row(node_id)
    wide = context.wide_ports(node_id)
    if "wide" not in (*wide.inputs, *wide.outputs) or _untouched(context, node_id):
        reason = "its bodies decide" if is_structured(index, node_id) else "no FP32 computation"
        if index.outputs[node_id] and index.outputs[node_id][0] in index.constants:
            reason = "a constant, stored as its readers need it"
        return Decision(node_id, label, op_type, "none", "none", reason)
    wish = overrides.get(node_id)
    forced = wish is not None and wish.format != FP32.name
    if node_id in narrow:
        assert row is not None
        if wish is not None and forced:
            reason = f"narrowed by {wish.origin or 'an override'}"
            return Decision(node_id, label, op_type, context.fmt.name, "override", reason)
        return Decision(node_id, label, op_type, context.fmt.name, f"class {row.op_class.value}", row.reason)
    illegal = context.illegal.get(node_id)
    refusal = refused.get(node_id) or (illegal if forced else None)
    if refusal is None and row is not None and row.op_class is OpClass.WIDE:
        return Decision(node_id, label, op_type, FP32.name, "class wide", row.reason)
    refusal = refusal or illegal
    assert refusal is not None
    return Decision(node_id, label, op_type, FP32.name, refusal.rule, refusal.reason, refusal.evidence)
