"""Repair: a first plan that fails gets its true culprits widened, in at most three rounds."""

from __future__ import annotations

import math

from converter.policy.legality import Refusal
from converter.search.planner import Evaluation, Planner
from converter.search.prices import Cut, Price, cuts, price_list
from converter.types import Evidence, RepairRound

MAX_ROUNDS = 3
TARGETS = (0.25, 0.04, 0.0025)
"""Squared share of the limit that all remaining roundings may use, by round: half of it, a fifth, a twentieth."""


def repair(planner: Planner, first: Evaluation) -> tuple[dict[int, Refusal], list[RepairRound], Evaluation]:
    """Widen the nodes whose roundings explain the error until the tolerance holds or the rounds are used up.

    Returns the widened nodes with their reasons, the rounds, and the evaluation of the best plan found.
    """
    widened: dict[int, Refusal] = {}
    rounds: list[RepairRound] = []
    best, current = first, first
    for number in range(1, MAX_ROUNDS + 1):
        prices = price_list(planner.context, current.plan, planner.sensitivity())
        chosen = choose_cut(prices, current, TARGETS[number - 1])
        new = {n: _reason(planner, prices, n) for n in sorted(chosen.nodes) if n not in widened}
        if not new:
            break
        attempt = widened | new
        evaluation = planner.evaluate(attempt)
        rounds.append(_round(planner, number, current, evaluation, list(new), prices))
        widened, current = attempt, evaluation
        if evaluation.ratio < best.ratio or evaluation.passes:
            best = evaluation
        if evaluation.passes:
            break
    kept = {n: r for n, r in widened.items() if n in best.wide}
    return kept, rounds, best


def choose_cut(prices: list[Price], current: Evaluation, target: float) -> Cut:
    """The shortest prefix of the price list after which the rest should use no more than ``target``.

    Prices are calibrated by what the current plan really did: the model adds independent errors, the run knows.
    """
    options = cuts(prices)
    scale = calibration(options[0].remaining, current.ratio)
    return next((cut for cut in options if cut.remaining * scale <= target), options[-1])


def calibration(predicted: float, ratio: float) -> float:
    """Measured over predicted squared error; 1 where there is nothing to compare."""
    if not math.isfinite(ratio) or predicted <= 0.0:
        return 1.0
    return ratio**2 / predicted


def _reason(planner: Planner, prices: list[Price], node_id: int) -> Refusal:
    price = next(p for p in prices if node_id in p.nodes)
    name = planner.context.index.name_of(price.value_id)
    share = math.sqrt(price.cost)
    return Refusal(
        node_id,
        "repair",
        f"rounding value '{name}' here costs {share:.3g} of the allowed output error (measured on the batches)",
        Evidence(name, share, 1.0),
    )


def _round(
    planner: Planner, number: int, before: Evaluation, after: Evaluation, new: list[int], prices: list[Price]
) -> RepairRound:
    labels = planner.context.index.labels
    worst = prices[0]
    return RepairRound(
        round=number,
        worst_output=before.worst_output,
        error_before=_finite(before.rel_l2_error),
        error_after=_finite(after.rel_l2_error),
        widened=tuple(labels[n] for n in new),
        reason=(
            f"the dearest rounding was of value '{planner.context.index.name_of(worst.value_id)}', which alone used "
            f"{math.sqrt(worst.cost):.3g} times the allowed error"
        ),
    )


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
