"""``--search``: the smallest FP32 set that keeps the tolerance, in about a dozen evaluations.

One sensitivity pass prices every rounding.  The price list (best bargains first) is cut where the priced rest
should just keep the limit, the cut is run for real on the interpreter, and its result recalibrates the prices for
the next cut, until the shortest passing cut is known or the evaluations are used up.  Last, nodes that came in
with a pair but are not needed themselves are given back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from converter.policy.legality import Refusal
from converter.search.last_resort import before_steps, last_resorts
from converter.search.planner import Evaluation, Planner
from converter.search.prices import Cut, Price, cuts
from converter.search.reasons import measured_reasons
from converter.search.repair import calibration

MAX_EVALUATIONS = 12
THINNING = 2
"""Evaluations kept back for giving nodes back."""

HOPELESS = 4.0
"""A cut whose calibrated rest uses this many times the squared limit is not worth an evaluation."""

SMALLEST_SCALE = 1e-9


def search(
    planner: Planner, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[dict[int, Refusal], list[Evaluation]]:
    """The widened nodes with reasons, and every evaluation on the way, the chosen one last.

    Without any passing plan the one with the smallest error is returned.
    """
    first = planner.evaluate({})
    if first.passes:
        return {}, [first]
    prices = planner.prices(first.plan)
    hunt = _Hunt(planner, prices, first, progress)
    best = hunt.shortest_passing()
    resorts: dict[int, Refusal] = {}
    if best is None:
        best, resorts = hunt.beyond_prices()
    else:
        best = hunt.thinned(best)
    chosen = best if best is not None else min(hunt.tried, key=lambda e: (e.ratio, len(e.wide)))
    ordered = [*(e for e in hunt.tried if e is not chosen), chosen]
    reasons = resorts | measured_reasons(planner.context.index, "search", prices, chosen.wide)
    return {n: reasons[n] for n in sorted(chosen.wide)}, ordered


class _Hunt:
    def __init__(
        self, planner: Planner, prices: list[Price], first: Evaluation, progress: Callable[[int, int], None]
    ) -> None:
        self.planner = planner
        self.prices = prices
        self.options: list[Cut] = cuts(prices)
        self.tried = [first]
        self.scale = calibration(self.options[0].remaining, first.ratio)
        self._progress = progress

    def evaluate(self, nodes: frozenset[int]) -> Evaluation:
        reasons = measured_reasons(self.planner.context.index, "search", self.prices, nodes)
        evaluation = self.planner.evaluate(reasons)
        if evaluation not in self.tried:
            self.tried.append(evaluation)
        self._progress(self.planner.evaluations, MAX_EVALUATIONS)
        return evaluation

    def shortest_passing(self) -> Evaluation | None:
        """Close in on the shortest passing cut from both sides."""
        low, high = 0, len(self.options) - 1
        best: Evaluation | None = None
        target = 0.5
        while self.planner.evaluations < MAX_EVALUATIONS - THINNING:
            guess = self._guess(low, high, target)
            if best is not None and (guess >= high or self._hopeless(guess)):
                break
            evaluation = self.evaluate(self.options[guess].nodes)
            if evaluation.passes:
                best, high = evaluation, guess
            elif guess >= high:
                break
            else:
                low = guess
            self._recalibrate(guess, evaluation)
            target = 0.8
            if high - low <= 1 and best is not None:
                break
        if best is None and self.planner.evaluations < MAX_EVALUATIONS:
            last = self.evaluate(self.options[-1].nodes)
            best = last if last.passes else None
        return best

    def beyond_prices(self) -> tuple[Evaluation | None, dict[int, Refusal]]:
        """What prices do not explain: all that lies in front of steps, and then all that is broken."""
        context, reasons = self.planner.context, dict[int, Refusal]()
        for attempt in (before_steps(context, self.tried[0]), *last_resorts(context, self.tried[0])):
            if not attempt:
                continue
            evaluation = self.planner.evaluate(attempt)
            reasons = {n: replace(r, rule="search") for n, r in attempt.items()} | reasons
            self.tried.append(evaluation)
            if evaluation.passes:
                return evaluation, reasons
        return None, reasons

    def _guess(self, low: int, high: int, target: float) -> int:
        """Where the calibrated rest should keep the limit, strictly between what fails and what passes."""
        wanted = next((k for k, c in enumerate(self.options) if c.remaining * self.scale <= target), high)
        if wanted <= low:
            wanted = low + max(1, (high - low) // 4)
        return min(wanted, high)

    def _hopeless(self, guess: int) -> bool:
        return self.options[guess].remaining * self.scale > HOPELESS

    def _recalibrate(self, guess: int, evaluation: Evaluation) -> None:
        """Trust what was measured; a saturated error only says that the cut was far too short."""
        remaining = self.options[guess].remaining
        if evaluation.passes:
            if remaining > 0.0:
                self.scale = max(evaluation.ratio**2 / remaining, SMALLEST_SCALE)
            return
        measured = calibration(remaining, evaluation.ratio)
        self.scale = measured if measured != 1.0 else self.scale * 4.0

    def thinned(self, best: Evaluation) -> Evaluation:
        """Give back the nodes that carry the least of what the cut removed, as long as the tolerance holds."""
        ranked = self._by_worth(best.wide)
        share = len(ranked) // 3
        for _ in range(THINNING):
            if share < 1 or self.planner.evaluations >= MAX_EVALUATIONS:
                break
            evaluation = self.evaluate(frozenset(ranked[share:]))
            if evaluation.passes:
                best, ranked = evaluation, ranked[share:]
                share = len(ranked) // 3
            else:
                share //= 3
        return best

    def _by_worth(self, wide: frozenset[int]) -> list[int]:
        """Widened nodes, the least worth keeping first."""
        worth = dict.fromkeys(wide, 0.0)
        for price in self.prices:
            if price.nodes <= wide:
                for node_id in price.nodes:
                    worth[node_id] += price.cost
        return sorted(wide, key=lambda n: (worth[n], n))
