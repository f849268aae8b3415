"""Evaluating plans: one pass of one plan over all batches, on the given graph, with no rewriting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from converter.compare.outputs import OutputRecord
from converter.compare.perturbation import PerturbationTap
from converter.compare.run import Comparison, compare
from converter.compare.sensitivity import Sensitivity
from converter.cost import node_flops
from converter.policy.clamps import zone
from converter.policy.context import Context
from converter.policy.decide import decide
from converter.policy.legality import Refusal
from converter.runtime.formatting import declared_formats, planned_formats
from converter.runtime.interpreter import Interpreter
from converter.search.prices import Price, price_list
from converter.types import OutputTolerance, PrecisionPlan

Feeds = Callable[[], Iterable[Mapping[str, Any]]]
Limits = Callable[[str], OutputTolerance]

MAX_MEASURED_BATCHES = 4
"""Batches on which roundings are priced: those that did worst."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A plan and how it did: ``ratio`` is the worst output's error over its limit (infinite: broken)."""

    plan: PrecisionPlan
    wide: frozenset[int]
    ratio: float
    rel_l2_error: float
    worst_output: str = ""
    broken: tuple[str, ...] = ()
    """Outputs beyond their limits; all of them where the plan did not run to its end."""

    @property
    def passes(self) -> bool:
        return self.ratio <= 1.0


class Planner:
    """Decides and evaluates plans for one conversion, and counts the evaluations."""

    def __init__(self, context: Context, interpreter: Interpreter, feeds: Feeds, limits: Limits) -> None:
        self.context = context
        self.flops = node_flops(context.index, context.ranges)
        self.interpreter = interpreter
        self.feeds = feeds
        self.limits = limits
        self.evaluations = 0
        self._sensitivities: list[Sensitivity] | None = None
        self._batch_ratios: dict[int, float] = {}
        self._done: dict[frozenset[int], Evaluation] = {}

    def plan(self, wide: Mapping[int, Refusal]) -> PrecisionPlan:
        """The plan with these nodes kept FP32 on top of what the rules keep."""
        return decide(self.context, wide)

    def evaluate(self, wide: Mapping[int, Refusal]) -> Evaluation:
        """Run a plan on all batches; known plans are not run again."""
        key = frozenset(wide)
        if key not in self._done:
            plan = self.plan(wide)
            spec = planned_formats(self.context.index, plan)
            compared = compare(self.interpreter, spec, self.feeds(), local=False, layers=False)
            self.evaluations += 1
            self._done[key] = self.score(plan, key, compared)
        return self._done[key]

    def score(self, plan: PrecisionPlan, wide: frozenset[int], compared: Comparison) -> Evaluation:
        """A comparison as an evaluation: the worst output's use of its limit, and the worst relative L2 error."""
        if compared.failures:
            return Evaluation(plan, wide, math.inf, math.inf, broken=tuple(compared.outputs))
        worst, name, error = 0.0, "", 0.0
        broken = []
        for output, record in compared.outputs.items():
            ratio = output_ratio(record, self.limits(output))
            limit = self.limits(output).max_rel_l2 or 1.0
            for batch, measured in enumerate(record.errors):
                self._batch_ratios[batch] = max(self._batch_ratios.get(batch, 0.0), measured / max(limit, 1e-30))
            if not ratio <= 1.0:
                broken.append(output)
            if ratio > worst or not name:
                worst, name = ratio, output
            if record.figures is not None:
                relative = record.figures.rel_l2_error
                error = max(error, math.inf if relative is None else relative)
        return Evaluation(plan, wide, worst, error, name, tuple(broken))

    def prices(self, plan: PrecisionPlan) -> list[Price]:
        """Every rounding of a plan with its price on the batch where it is dearest, best bargains first."""
        return price_list(self.context, plan, self.sensitivities(), self.flops)

    def sensitivities(self) -> list[Sensitivity]:
        """Measured once, on the batches that did worst: what rounding each value costs at the outputs.

        Counts as one evaluation.
        """
        if self._sensitivities is None:
            context = self.context
            bounds = {
                value_id: context.fmt.max_finite
                for value_id, seen in context.ranges.items()
                if context.request.overflow == "clamp" and zone(context, seen) is not None
            }
            graph = context.index.model.graph
            limits = {context.index.id_of(v): self.limits(v.name or "").max_rel_l2 or 1e-3 for v in graph.outputs}
            self._sensitivities = []
            worst = self._worst_batches()
            for number, feeds in enumerate(self.feeds()):
                if number in worst:
                    tap = PerturbationTap(context.index, context.fmt, bounds)
                    self.interpreter.run(feeds, [declared_formats(context.index)], [tap])
                    found = tap.result()
                    found.weigh(limits)
                    self._sensitivities.append(found)
            self.evaluations += 1
        return self._sensitivities

    def _worst_batches(self) -> set[int]:
        """The batches that used most of their limits in any run so far."""
        ranked = sorted(self._batch_ratios, key=lambda b: (-self._batch_ratios[b], b))
        return set(ranked[:MAX_MEASURED_BATCHES]) or {0}


def output_ratio(record: OutputRecord, allowed: OutputTolerance) -> float:
    """How much of its limits an output uses; infinite where something is broken that no number measures."""
    if record.mismatches:
        return math.inf
    figures = record.figures
    if figures is None:
        return 0.0
    if figures.misplaced_nonfinite or figures.rel_l2_error is None:
        return math.inf
    used = [0.0]
    if allowed.max_rel_l2 is not None:
        used.append(_share(figures.rel_l2_error, allowed.max_rel_l2))
    if allowed.min_sqnr_db is not None and figures.sqnr_db is not None:
        used.append(10 ** ((allowed.min_sqnr_db - figures.sqnr_db) / 20))
    if allowed.max_abs is not None:
        used.append(_share(figures.max_abs_error, allowed.max_abs))
    if allowed.min_top1_agreement is not None and figures.top1_agreement is not None:
        short = allowed.min_top1_agreement - figures.top1_agreement
        used.append(1.0 + short if short > 0 else 0.0)
    return max(used)


def _share(value: float, limit: float) -> float:
    return value / limit if limit > 0 else (0.0 if value == 0 else math.inf)
