"""``--search``: the smallest FP32 set that keeps the tolerance, in about a dozen evaluations.

One sensitivity pass prices every rounding; the price list is cut by bisection, each cut run for real on the
interpreter; the last passing cut is then thinned where single nodes are cheap.
"""

from __future__ import annotations

from collections.abc import Callable

from converter.policy.legality import Refusal
from converter.search.planner import Evaluation, Planner
from converter.search.prices import Cut, Price, cuts, price_list
from converter.search.repair import calibration
from converter.types import Evidence

MAX_EVALUATIONS = 12
THINNING_ROUNDS = 2


def search(
    planner: Planner, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[dict[int, Refusal], list[Evaluation]]:
    """The widened nodes with reasons, and every evaluation on the way, best last.

    Without any passing plan the one with the smallest error is returned.
    """
    first = planner.evaluate({})
    tried = [first]
    if first.passes:
        return {}, tried
    prices = price_list(planner.context, first.plan, planner.sensitivity())
    options = cuts(prices)
    low, high = 0, len(options) - 1
    guess = _first_guess(options, first)
    best: Evaluation | None = None
    while low < high and planner.evaluations < MAX_EVALUATIONS - THINNING_ROUNDS:
        middle = min(max(guess, low + 1), high)
        evaluation = planner.evaluate(_reasons(planner, prices, options[middle]))
        tried.append(evaluation)
        progress(planner.evaluations, MAX_EVALUATIONS)
        if evaluation.passes:
            best, high = evaluation, middle
        else:
            low = middle
        if high - low <= 1 and best is not None:
            break
        guess = _next_guess(options, low, high, evaluation)
    if best is None:
        last = planner.evaluate(_reasons(planner, prices, options[-1]))
        tried.append(last)
        best = min(tried, key=lambda e: e.ratio)
    thinned = _thin(planner, prices, best)
    tried += [e for e in thinned if e is not tried[-1]]
    chosen = min((e for e in tried if e.passes), key=lambda e: (len(e.wide), e.ratio), default=best)
    return {n: _reason(planner, prices, n) for n in sorted(chosen.wide)}, [
        *(e for e in tried if e is not chosen),
        chosen,
    ]


def _first_guess(options: list[Cut], first: Evaluation) -> int:
    """The cut after which the calibrated rest should just keep the limit."""
    scale = calibration(options[0].remaining, first.ratio)
    return next((k for k, cut in enumerate(options) if cut.remaining * scale <= 0.5), len(options) - 1)


def _next_guess(options: list[Cut], low: int, high: int, last: Evaluation) -> int:
    """Between a failing and a passing cut: where the calibrated rest crosses the limit, else the middle in nodes."""
    by_size = (len(options[low].nodes) + len(options[high].nodes)) / 2
    middle = next((k for k in range(low + 1, high) if len(options[k].nodes) >= by_size), (low + high) // 2)
    del last
    return middle


def _thin(planner: Planner, prices: list[Price], best: Evaluation) -> list[Evaluation]:
    """Give back the cheapest half of the widened nodes, then a quarter, as long as the tolerance holds."""
    found: list[Evaluation] = []
    if not best.passes:
        return found
    worth = {n: sum(p.cost for p in prices if n in p.nodes) for n in best.wide}
    ranked = sorted(best.wide, key=lambda n: worth[n])
    share = len(ranked) // 2
    for _ in range(THINNING_ROUNDS):
        if share < 1 or planner.evaluations >= MAX_EVALUATIONS:
            break
        kept = ranked[share:]
        evaluation = planner.evaluate({n: _reason(planner, prices, n) for n in sorted(kept)})
        found.append(evaluation)
        if evaluation.passes:
            ranked = kept
        share = share // 2 if not evaluation.passes else len(ranked) // 2
    return found


def _reasons(planner: Planner, prices: list[Price], cut: Cut) -> dict[int, Refusal]:
    return {n: _reason(planner, prices, n) for n in sorted(cut.nodes)}


def _reason(planner: Planner, prices: list[Price], node_id: int) -> Refusal:
    price = next(p for p in prices if node_id in p.nodes)
    name = planner.context.index.name_of(price.value_id)
    share = price.cost**0.5
    return Refusal(
        node_id,
        "search",
        f"rounding value '{name}' here costs {share:.3g} of the allowed output error (measured on the batches)",
        Evidence(name, share, 1.0),
    )
