"""States of Loop and Scan: what is added up from iteration to iteration stays FP32.

A rounding inside the recurrence is made once per iteration and compounds: a BF16 state that counts ones stops
at 256.  Matrix products inside a body accumulate wide and may be narrow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from converter.graph import ModelIndex
from converter.operators import canonical_domain
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.types import OpClass


def loop_carried(context: Context, narrow: frozenset[int]) -> Iterable[Refusal]:
    """Refuse elementwise nodes on a path from a carried state's input to its own output."""
    index = context.index
    for node_id, bodies in index.bodies.items():
        node = index.nodes[node_id]
        if canonical_domain(node.domain) != "" or node.op_type not in ("Loop", "Scan"):
            continue
        body = bodies["body"]
        for state_in, state_out in _states(index, node_id, body):
            if not index.is_wide(state_in):
                continue
            for inner in sorted(_between(index, state_in, state_out) & narrow):
                row = context.row(inner)
                if row is not None and row.op_class in (OpClass.FOLLOW, OpClass.EXACT):
                    yield Refusal(
                        inner,
                        "loop-carried",
                        f"lies on the recurrence of state '{index.name_of(state_in)}' of {node.op_type} "
                        f"'{index.labels[node_id]}': a rounding would compound over the iterations",
                    )


def _states(index: ModelIndex, node_id: int, body: int) -> list[tuple[int, int]]:
    graph = index.scopes[body].graph
    inputs = [index.id_of(v) for v in graph.inputs]
    outputs = [index.id_of(v) for v in graph.outputs]
    if index.nodes[node_id].op_type == "Loop":
        carried = len(index.inputs[node_id]) - 2
        return list(zip(inputs[2 : 2 + carried], outputs[1 : 1 + carried], strict=True))
    scanned = index.nodes[node_id].attributes["num_scan_inputs"].as_int()
    carried = len(inputs) - scanned
    return list(zip(inputs[:carried], outputs[:carried], strict=True))


def _between(index: ModelIndex, start: int, end: int) -> set[int]:
    """Nodes that depend on ``start`` and that ``end`` depends on."""
    after: set[int] = set()
    waiting = deque([start])
    while waiting:
        for node_id, _ in index.readers[waiting.popleft()]:
            if node_id not in after:
                after.add(node_id)
                waiting.extend(v for v in index.outputs[node_id] if v >= 0)
    before: set[int] = set()
    backwards = deque([end])
    while backwards:
        producer = index.producer[backwards.popleft()]
        if producer >= 0 and producer not in before:
            before.add(producer)
            backwards.extend(v for v in index.inputs[producer] if v >= 0)
    return after & before
