"""What each rounding of a plan costs at the outputs, and which nodes have to be FP32 to be rid of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from converter.compare.sensitivity import Sensitivity
from converter.graph import ModelIndex
from converter.policy.context import Context
from converter.policy.legality import is_structured
from converter.types import OpClass, PrecisionPlan

CANCELS = 0.25
"""Below this share of the sum of its readers' prices a rounding is priced as one."""


@dataclass(frozen=True, slots=True)
class Price:
    """One rounding: its squared error at the outputs in units of their limits, and the nodes to widen for it."""

    cost: float
    nodes: frozenset[int]
    value_id: int


def price_list(
    context: Context, plan: PrecisionPlan, sensitivities: Sequence[Sensitivity], flops: Mapping[int, float]
) -> list[Price]:
    """All roundings of a plan, the best bargains first: most error for the fewest nodes and operations widened.

    What data movement only passes on is counted at its reader.  Of several sensitivities (one per batch) the dearest
    price counts.
    """
    dearest: dict[tuple[int, int, frozenset[int]], Price] = {}
    for sensitivity in sensitivities:
        pricing = _Pricing(context, plan, sensitivity)
        seen: Counter[tuple[int, frozenset[int]]] = Counter()
        for price in (*pricing.reads(), *pricing.leaves()):
            seen[price.value_id, price.nodes] += 1
            key = (seen[price.value_id, price.nodes], price.value_id, price.nodes)
            if price.cost > 0.0 and price.nodes and (key not in dearest or price.cost > dearest[key].cost):
                dearest[key] = price
    found = list(dearest.values())
    weights = _weights(len(context.index.nodes), flops)
    return sorted(found, key=lambda p: (-p.cost / sum(weights(n) for n in p.nodes), sorted(p.nodes)))


def _weights(nodes: int, flops: Mapping[int, float]) -> Callable[[int], float]:
    """What widening a node gives up: its share of the nodes plus its share of the operations."""
    total = sum(flops.values()) or 1.0
    return lambda node_id: 1.0 / max(1, nodes) + flops.get(node_id, 0.0) / total


class _Pricing:
    def __init__(self, context: Context, plan: PrecisionPlan, sensitivity: Sensitivity) -> None:
        self.context = context
        self.index: ModelIndex = context.index
        self.plan = plan
        self.sensitivity = sensitivity
        self.narrow = plan.narrow_nodes()
        self._chains: dict[int, frozenset[int]] = {}

    def reads(self) -> Iterator[Price]:
        """Roundings as readers see them: each for itself, or all together where their errors cancel."""
        for value_id, readers in enumerate(self.index.readers):
            if not self.index.is_wide(value_id):
                continue
            prices = [p for node_id, position in readers for p in self._read(node_id, position, value_id)]
            yield from self._jointly(value_id, prices)

    def _read(self, node_id: int, position: int, value_id: int) -> Iterator[Price]:
        if self._moves(node_id):
            return
        casts = self.plan.reads.get((node_id, position)) == self.plan.to
        nodes = self._chain(value_id) | (frozenset((node_id,)) if casts else frozenset())
        if nodes:
            yield Price(self.sensitivity.cost(node_id, position), nodes, value_id)

    def _jointly(self, value_id: int, prices: list[Price]) -> list[Price]:
        """One price for a value whose readers all see one rounding that cancels where their paths meet."""
        if value_id not in self.sensitivity.joint or len(prices) != len(self.index.readers[value_id]):
            return prices
        together = self.sensitivity.stored_cost(value_id)
        if together >= CANCELS * sum(p.cost for p in prices):
            return prices
        return [Price(together, frozenset().union(*(p.nodes for p in prices)), value_id)]

    def leaves(self) -> Iterator[Price]:
        """Roundings of what leaves a graph or a body."""
        for value_id, places in enumerate(self.index.leaves):
            nodes = self._chain(value_id) if places and self.index.is_wide(value_id) else frozenset()
            if nodes:
                weight = sum(self._leaf_weight(scope_id, position) for scope_id, position in places)
                yield Price(self.sensitivity.rounding.get(value_id, 0.0) * weight, nodes, value_id)

    def _leaf_weight(self, scope_id: int, position: int) -> float:
        """Weight of an error that leaves through one output position."""
        owner = self.index.scopes[scope_id].owner
        weights = self.sensitivity.weights
        if owner is None:
            return self.sensitivity.output_weights.get(
                self.index.id_of(self.index.scopes[0].graph.outputs[position]), 0.0
            )
        output = position - (1 if self.index.nodes[owner].op_type == "Loop" else 0)
        made = self.index.outputs[owner]
        return weights.get(made[output], 0.0) if 0 <= output < len(made) else 0.0

    def _moves(self, node_id: int) -> bool:
        """Whether a narrow node only moves values, so that roundings around it are counted at its readers."""
        row = self.context.row(node_id)
        exact = node_id in self.narrow and row is not None and row.op_class is OpClass.EXACT
        return exact and bool(self.context.narrow_outputs(node_id)) and bool(self.context.narrow_inputs(node_id))

    def _chain(self, value_id: int) -> frozenset[int]:
        """Nodes that have to be FP32 for a value not to be rounded: its producer, through data movement."""
        if self.plan.stored.get(value_id) != self.plan.to:
            return frozenset()
        if value_id not in self._chains:
            self._chains[value_id] = frozenset()  # states of loops lead back here
            self._chains[value_id] = self._find_chain(value_id)
        return self._chains[value_id]

    def _find_chain(self, value_id: int) -> frozenset[int]:
        producer = self.index.producer[value_id]
        if producer < 0:
            return frozenset()
        if is_structured(self.index, producer):
            output = self.index.outputs[producer].index(value_id)
            skip = 1 if self.index.nodes[producer].op_type == "Loop" else 0
            found: frozenset[int] = frozenset()
            for body in self.index.bodies[producer].values():
                leaf = self.index.scopes[body].graph.outputs[output + skip]
                found |= self._chain(self.index.id_of(leaf))
            return found
        found = frozenset((producer,))
        if self._moves(producer):
            for source in self.context.narrow_inputs(producer):
                found |= self._chain(source)
        return found


@dataclass(frozen=True, slots=True)
class Cut:
    """A prefix of the price list made FP32: the nodes, and what all other roundings cost together."""

    prices: int
    nodes: frozenset[int]
    remaining: float


def cuts(prices: list[Price], fixed: Iterable[int] = ()) -> list[Cut]:
    """For every length of prefix that adds nodes: the nodes so far and the cost that remains; O(total size)."""
    wide = set(fixed)
    missing = [len(p.nodes - wide) for p in prices]
    waiting: Mapping[int, list[int]] = defaultdict(list)
    for number, price in enumerate(prices):
        for node_id in price.nodes - wide:
            waiting[node_id].append(number)
    remaining = sum(p.cost for p, m in zip(prices, missing, strict=True) if m)
    found = [Cut(0, frozenset(), remaining)]
    added: set[int] = set()
    for number, price in enumerate(prices):
        new = price.nodes - wide
        if not new:
            continue
        for node_id in new:
            wide.add(node_id)
            for other in waiting[node_id]:
                missing[other] -= 1
                if missing[other] == 0:
                    remaining -= prices[other].cost
        added |= new
        found.append(Cut(number + 1, frozenset(added), max(remaining, 0.0)))
    return found
