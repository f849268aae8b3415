"""Proving a plan: run it, repair or search where asked and needed, and price its clamps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from converter.compare.run import Comparison, compare
from converter.cost import cast_bytes, narrow_share, plan_bytes
from converter.policy.context import Context
from converter.policy.legality import Refusal
from converter.runtime.formatting import planned_formats
from converter.runtime.interpreter import Interpreter
from converter.search.planner import Evaluation, Planner
from converter.search.policy_rules import policy_rules
from converter.search.repair import MAX_ROUNDS, repair
from converter.search.search import MAX_EVALUATIONS, search
from converter.types import ClampSite, OutputTolerance, PolicyOverride, PrecisionPlan, PricePoint, RepairRound

MAX_PRICED_CLAMPS = 4
"""Clamps that touched values and are run once more without: those that touched most."""

Stage = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, slots=True)
class ClampPrice:
    """What widening costs instead of a clamp: bytes of activations and casts more (fewer: below zero), and the error
    that is left.
    """

    widened_bytes: int
    widened_rel_l2: float | None


@dataclass(frozen=True, slots=True)
class Proof:
    """The plan that is kept and how it did."""

    plan: PrecisionPlan
    compared: Comparison
    rounds: tuple[RepairRound, ...] = ()
    prices: tuple[PricePoint, ...] = ()
    policy: tuple[PolicyOverride, ...] = ()
    clamps: Mapping[int, ClampPrice] = field(default_factory=dict)
    evaluations: int = 0


class Prover:
    """Proves plans for one conversion."""

    def __init__(
        self,
        context: Context,
        interpreter: Interpreter,
        feeds: Callable[[], Iterator[Mapping[str, Any]]],
        batches: int,
        limits: Mapping[str, OutputTolerance],
        checked_batches: int,
        stage: Stage,
    ) -> None:
        self.context = context
        self.interpreter = interpreter
        self.planner = Planner(context, interpreter, feeds, lambda name: limits[name])
        self._feeds = feeds
        self._batches = batches
        self._checked_batches = checked_batches
        self._stage = stage

    def prove(self, plan: PrecisionPlan) -> Proof:
        """Run the plan, or the one that search or repair makes of it."""
        if self.context.request.search:
            return self._searched()
        compared = self._compare(plan)
        first = self.planner.score(plan, frozenset(), compared)
        if first.passes or not self.context.request.repair:
            return self._finish(plan, compared, {})
        with self._stage("compare", MAX_ROUNDS):
            widened, rounds, best = repair(self.planner, first)
        if best is not first:
            plan = self.planner.plan(widened)
            compared = self._compare(plan)
        return self._finish(plan, compared, widened, rounds=tuple(rounds))

    def _searched(self) -> Proof:
        with self._stage("compare", MAX_EVALUATIONS) as done:
            widened, tried = search(self.planner, lambda count, _: done(count))
        plan = self.planner.plan(widened)
        prices = tuple(self._price_point(e, e is tried[-1]) for e in tried)
        return self._finish(plan, self._compare(plan), widened, prices=prices)

    def _compare(self, plan: PrecisionPlan) -> Comparison:
        spec = planned_formats(self.context.index, plan)
        with self._stage("compare", self._batches) as done:
            return compare(
                self.interpreter,
                spec,
                self._feeds(),
                every_metric=self.context.request.metrics == "all",
                keep=self._checked_batches,
                keep_references=self.context.request.provider != "none",
                progress=done,
            )

    def _finish(
        self,
        plan: PrecisionPlan,
        compared: Comparison,
        widened: Mapping[int, Refusal],
        rounds: tuple[RepairRound, ...] = (),
        prices: tuple[PricePoint, ...] = (),
    ) -> Proof:
        clamps = self._price_clamps(plan, compared, widened)
        policy = policy_rules(self.context.index, plan, widened)
        return Proof(plan, compared, rounds, prices, policy, clamps, self.planner.evaluations)

    def _price_point(self, evaluation: Evaluation, chosen: bool) -> PricePoint:
        plan = evaluation.plan
        return PricePoint(
            wide_nodes=sum(d.format == "fp32" for d in plan.decisions),
            narrow_flops_share=narrow_share(self.planner.flops, plan),
            cast_bytes=cast_bytes(plan, self.context.ranges),
            rel_l2_error=evaluation.rel_l2_error,
            chosen=chosen,
        )

    def _price_clamps(
        self, plan: PrecisionPlan, compared: Comparison, widened: Mapping[int, Refusal]
    ) -> dict[int, ClampPrice]:
        """Run the plan once more without each of the clamps that touched most: its nodes FP32 instead."""
        touching = [c for c in plan.clamps if compared.touched.get(c.value_id)]
        touching.sort(key=lambda c: -compared.touched[c.value_id])
        found: dict[int, ClampPrice] = {}
        before = plan_bytes(plan, self.context.ranges)
        for site in touching[:MAX_PRICED_CLAMPS]:
            instead = {n: Refusal(n, "clamp price", "widened instead of a clamp") for n in self._nodes_of(plan, site)}
            evaluation = self.planner.evaluate({**widened, **instead})
            more = plan_bytes(evaluation.plan, self.context.ranges) - before
            found[site.value_id] = ClampPrice(more, evaluation.rel_l2_error)
        return found

    def _nodes_of(self, plan: PrecisionPlan, site: ClampSite) -> list[int]:
        """The narrow node that makes a clamped value, or the narrow readers of one that is clamped at its cast."""
        index = self.context.index
        if site.place == "output":
            return [index.producer[site.value_id]]
        return sorted(n for n, k in index.readers[site.value_id] if plan.reads.get((n, k)) == plan.to)
