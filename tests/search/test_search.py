"""The smallest FP32 set: against every other set on graphs small enough to try them all."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from converter import convert
from converter.compare.tolerances import allowed_for, named_tolerance
from converter.graph import ModelIndex
from converter.policy.legality import Refusal
from converter.runtime.interpreter import Interpreter
from converter.search.planner import Planner
from converter.search.search import MAX_EVALUATIONS, search
from converter.types import ConversionRequest
from tests.models.build import indexed, model
from tests.models.run import context_of

RNG = np.random.default_rng(21)
X = RNG.standard_normal((8, 16)).astype(np.float32)
WEIGHTS = {f"w{k}": (RNG.standard_normal((16, 16)) / 4).astype(np.float32) for k in range(4)}
CHAIN = """
    g (float[8, 16] x) => (float[8, 16] y) {
      [p0] a = MatMul(x, w0)  [p1] b = MatMul(a, w1)  [p2] c = MatMul(b, w2)  [p3] y = MatMul(c, w3) }"""
PLANTED = """
    g (float[8, 16] x) => (float[8, 16] y) <float k = {0.98}> {
      [p0] a = MatMul(x, w0)  [p1] b = MatMul(a, w1)  [near] n = Mul(b, k)  [gap] g = Sub(b, n)
      [p2] y = MatMul(g, w2) }"""


def planner_of(text: str, limit: float) -> Planner:
    index = indexed(text, weights=WEIGHTS)
    context = context_of(index, [{"x": X}])
    request = ConversionRequest(max_rel_l2=limit)
    tolerance = named_tolerance(None, "fp16")
    return Planner(
        context, Interpreter(index), lambda: [{"x": X}], lambda name: allowed_for(name, None, tolerance, request)
    )


def smallest(planner: Planner) -> int:
    """Size of the smallest FP32 set that passes, by trying all of them."""
    index: ModelIndex = planner.context.index
    narrow = sorted(planner.plan({}).narrow_nodes())
    for size in range(len(narrow) + 1):
        for chosen in combinations(narrow, size):
            if planner.evaluate({n: Refusal(n, "test", index.labels[n]) for n in chosen}).passes:
                return size
    return len(narrow)


@pytest.mark.parametrize("text", [CHAIN, PLANTED], ids=["chain", "planted"])
@pytest.mark.parametrize("limit", [1e-1, 3e-3, 1e-3, 7e-4, 5e-4, 3e-4, 1e-5])
def test_no_set_is_smaller_by_more_than_one(text: str, limit: float) -> None:
    planner = planner_of(text, limit)
    widened, tried = search(planner)
    assert planner.evaluations <= MAX_EVALUATIONS
    assert tried[-1].passes
    assert tried[-1].wide == frozenset(widened)
    assert len(widened) <= smallest(planner_of(text, limit)) + 1


def test_a_plan_that_passes_is_left_alone() -> None:
    planner = planner_of(CHAIN, 1e-1)
    assert search(planner) == ({}, [planner.evaluate({})])


def test_reasons_carry_the_price() -> None:
    widened, _ = search(planner_of(PLANTED, 3e-3))
    assert widened
    for refusal in widened.values():
        assert refusal.rule == "search"
        assert refusal.evidence is not None
        assert refusal.evidence.limit == 1.0
        assert "times the allowed output error" in refusal.reason


def test_the_report_lists_prices_and_the_chosen_plan() -> None:
    report = convert(model(PLANTED, weights=WEIGHTS), {"x": X}, search=True, max_rel_l2=3e-3).report
    assert report.verdict.status == "pass"
    assert 0 < report.summary.search_evaluations <= MAX_EVALUATIONS
    assert [p.chosen for p in report.price_list].count(True) == 1
    assert report.price_list[-1].chosen
    assert {d.rule for d in report.decisions if d.format == "fp32"} == {"search"}


def test_known_plans_are_not_run_again() -> None:
    planner = planner_of(CHAIN, 1e-3)
    first = planner.evaluate({})
    assert planner.evaluate({}) is first
    assert planner.evaluations == 1


def test_a_limit_nothing_keeps_gives_the_best_there_is() -> None:
    text = "g (float[8, 16] x) => (float[8, 16] y) { [p0] y = MatMul(x, w0) }"
    widened, tried = search(planner_of(text, 0.0))
    assert tried[-1].passes
    assert len(widened) == 1


def test_what_no_single_rounding_breaks_is_found_without_prices() -> None:
    """Close scores of a residual stream: an index that only several roundings together flip has no price."""
    rng = np.random.default_rng(4)
    lines, current = [], "x"
    for k in range(6):
        lines.append(f"u{k} = MatMul({current}, w{k})  t{k} = Tanh(u{k})  s{k} = Mul(t{k}, k)")
        lines.append(f"r{k} = Add({current}, s{k})")
        current = f"r{k}"
    lines.append(f"y = MatMul({current}, head)  i = ArgMax <axis = 1, keepdims = 0> (y)")
    text = "g (float[512, 16] x) => (int64[512] i) <float k = {0.05}> {\n" + "\n".join(lines) + "\n}"
    given = {f"w{k}": (rng.standard_normal((16, 16)) / 4).astype(np.float32) for k in range(6)}
    given["head"] = rng.standard_normal((16, 8)).astype(np.float32)
    x = rng.standard_normal((512, 16)).astype(np.float32)
    report = convert(model(text, weights=given), {"x": x}, to="bf16", search=True).report
    assert report.verdict.status == "pass"
    assert {d.rule for d in report.decisions if d.format == "fp32"} <= {"search", "class wide", "island"}
