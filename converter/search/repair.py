"""Repair: a first plan that fails gets its true culprits widened, in at most three rounds."""

from __future__ import annotations

import math

from converter.policy.legality import Refusal
from converter.search.last_resort import EXPLAINED, before_steps, last_resorts
from converter.search.planner import Evaluation, Planner
from converter.search.prices import Cut, Price, cuts
from converter.search.reasons import measured_reasons
from converter.types import RepairRound

MAX_ROUNDS = 3
TARGETS = (0.5, 0.35, 0.01)
"""Squared share of the limit that all remaining roundings may use, by round; the last one takes no chances."""

STEP_SHARES = (1 / 4, 1 / 16, 1 / 64, 1 / 1024)
"""Shares of the squared error in front of steps that are left in turn; then nothing is."""

TRUSTED_RATIO = 5.0
"""Beyond this many times the limit the error saturates and says nothing about the model's scale."""

SATURATED = 0.05
"""Below this share of the predicted squared error a measurement is taken as saturated."""


def repair(planner: Planner, first: Evaluation) -> tuple[dict[int, Refusal], list[RepairRound], Evaluation]:
    """Widen the nodes whose roundings explain the error until the tolerance holds or the rounds are used up.

    Returns the widened nodes with their reasons, the rounds, and the evaluation of the best plan found.
    """
    widened: dict[int, Refusal] = {}
    rounds: list[RepairRound] = []
    best, current = first, first
    reasons: dict[int, Refusal] = {}
    for number in range(1, MAX_ROUNDS + 1):
        prices = planner.prices(current.plan)
        chosen = choose_cut(prices, current, TARGETS[number - 1])
        new = measured_reasons(planner.context.index, "repair", prices, chosen.nodes - set(widened))
        last = number == MAX_ROUNDS or not new
        attempts = [new]
        if cuts(prices)[0].remaining < EXPLAINED * current.ratio**2:
            attempts[:0] = _in_front_of_steps(planner, current, prices)
        if last:
            attempts += last_resorts(planner.context, current)
        attempts = [attempt for attempt in attempts if attempt]
        if not attempts:
            break
        tried = _until_one_passes(planner, widened, attempts)
        extra, evaluation = tried[-1]
        reasons = {n: r for attempt, _ in tried for n, r in attempt.items()} | reasons
        rounds.append(_round(planner, number, current, evaluation, extra, prices if extra is new else []))
        best = min((best, *(e for _, e in tried)), key=lambda e: e.ratio)
        widened, current = widened | extra, evaluation
        if evaluation.passes or last:
            break
    return {n: reasons[n] for n in sorted(best.wide)}, rounds, best


def _in_front_of_steps(planner: Planner, current: Evaluation, prices: list[Price]) -> list[dict[int, Refusal]]:
    """What lies in front of steps, the dearest roundings first: a score that is right enough picks the right index."""
    every = before_steps(planner.context, current)
    options = cuts(prices)
    attempts: list[dict[int, Refusal]] = []
    for share in STEP_SHARES:
        left = share * options[0].remaining
        dear = next((cut.nodes for cut in options if cut.remaining <= left), frozenset())
        some = {n: reason for n, reason in every.items() if n in dear}
        if len(some) < len(every) and some not in attempts:
            attempts.append(some)
    return [*attempts, every]


def _until_one_passes(
    planner: Planner, widened: dict[int, Refusal], attempts: list[dict[int, Refusal]]
) -> list[tuple[dict[int, Refusal], Evaluation]]:
    """Evaluate attempts in turn, up to the first that passes."""
    tried = []
    for extra in attempts:
        tried.append((extra, planner.evaluate(widened | extra)))
        if tried[-1][1].passes:
            break
    return tried


def choose_cut(prices: list[Price], current: Evaluation, target: float) -> Cut:
    """The shortest prefix of the price list after which the rest should use no more than ``target``.

    Prices are calibrated by what the current plan really did: the model adds independent errors, the run knows.
    """
    options = cuts(prices)
    scale = calibration(options[0].remaining, current.ratio)
    return next((cut for cut in options if cut.remaining * scale <= target), options[-1])


def calibration(predicted: float, ratio: float) -> float:
    """Measured over predicted squared error; 1 where the measured one is broken, saturated or nothing.

    A prediction far above what was measured means that the error saturates somewhere (a relative error cannot
    grow as its amplification does); a scale from there would call most culprits harmless.
    """
    if not math.isfinite(ratio) or ratio > TRUSTED_RATIO or predicted <= 0.0 or ratio <= 0.0:
        return 1.0
    scale = ratio**2 / predicted
    return scale if scale >= SATURATED else 1.0


def _round(
    planner: Planner, number: int, before: Evaluation, after: Evaluation, new: dict[int, Refusal], prices: list[Price]
) -> RepairRound:
    labels = planner.context.index.labels
    reason = next(iter(new.values())).reason
    if prices:
        worst = max(prices, key=lambda p: p.cost)
        reason = (
            f"the dearest rounding was of value '{planner.context.index.name_of(worst.value_id)}', which alone used "
            f"{math.sqrt(worst.cost):.3g} times the allowed error"
        )
    return RepairRound(
        round=number,
        worst_output=before.worst_output,
        error_before=_finite(before.rel_l2_error),
        error_after=_finite(after.rel_l2_error),
        widened=tuple(labels[n] for n in new),
        reason=reason,
    )


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
