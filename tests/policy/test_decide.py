"""Decisions as text: a dozen tiny graphs whose printed plans are committed under ``tests/golden/plans``.

``NARROWCAST_REGENERATE=1 pytest tests/policy/test_decide.py`` writes them anew; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from converter.policy.decide import decide
from converter.policy.legality import Refusal
from converter.types import Evidence
from tests.models.run import context_of, narrow_labels, reason_of, rule_of
from tests.models.tiny import TINY, Tiny, tiny
from tests.policy.rules.asking import context

GOLDEN = Path(__file__).parents[1] / "golden" / "plans"
PLANNED = ("mlp", "conv", "attention", "norm", "recurrent", "branch", "loop", "scan", "sequence", "double", "quantized",
           "shared", "constants", "old")  # fmt: skip


@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_the_plan_is_the_committed_one(name: str, to: str) -> None:
    given = tiny(name)
    plan = decide(context_of(given.index(), [given.feeds(np.random.default_rng(7))], to=to))
    path = GOLDEN / f"{name}.{to}.txt"
    if os.environ.get("NARROWCAST_REGENERATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(plan.to_text())
    assert plan.to_text() == path.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {p.name for p in GOLDEN.iterdir()} == {f"{n}.{to}.txt" for n in PLANNED for to in ("fp16", "bf16")}


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_every_node_has_a_decision_with_a_reason(given: Tiny, to: str, rng: np.random.Generator) -> None:
    index = given.index()
    plan = decide(context_of(index, [given.feeds(rng)], to=to))
    assert [d.node_id for d in plan.decisions] == list(range(len(index.nodes)))
    assert [d.node for d in plan.decisions] == index.labels
    assert all(d.reason.strip() and d.rule.strip() for d in plan.decisions)
    assert {d.format for d in plan.decisions} <= {"fp32", to, "none"}
    assert plan.narrow_nodes() == {d.node_id for d in plan.decisions if d.format == to}


def test_deciding_is_pure(rng: np.random.Generator) -> None:
    given = tiny("attention")
    evidence = context_of(given.index(), [given.feeds(rng)])
    assert decide(evidence) == decide(evidence)


class TestReasons:
    def test_classes(self) -> None:
        plan = decide(context("g (float[2, 2] x) => (float[2, 2] y) { [p] h = MatMul(x, x)  [e] y = Exp(h) }"))
        assert (rule_of(plan, "p"), rule_of(plan, "e")) == ("class narrow", "class wide")

    def test_nodes_without_fp32(self) -> None:
        plan = decide(
            context("""
            g (int64[2] i, float[2] x, bool c) => (int64[2] j, float[2] y) {
              [ints] j = Neg(i)  [k] k = Constant<value_float = 2.0>()  h = Mul(x, k)
              [choose] y = If(c) <then_branch = t () => (float[2] u) { u = Neg(h) },
                                  else_branch = e () => (float[2] v) { v = Abs(h) }> }""")
        )
        assert {d.node: (d.format, d.reason) for d in plan.decisions if d.node in ("ints", "k", "choose")} == {
            "ints": ("none", "no FP32 computation"),
            "k": ("none", "a constant, stored as its readers need it"),
            "choose": ("none", "its bodies decide"),
        }

    def test_an_operator_nobody_knows(self) -> None:
        from tests.models.build import indexed

        index = indexed("g (float[2] x) => (float[2] y) { [own] h = mine.Op(x)  y = Exp(x) }", domains={"mine": 1})
        plan = decide(context_of(index))
        assert (rule_of(plan, "own"), reason_of(plan, "own")) == (
            "unknown", "operator Op of domain 'mine' is not in the policy table",
        )  # fmt: skip

    def test_comparisons_read_narrow_only_what_is_narrow_anyway(self) -> None:
        text = """
            g (float[2, 2] x) => (bool[2, 2] a, bool[2, 2] b) <float exact = {0.5}, float inexact = {0.1}> {
              [p] h = MatMul(x, x)  [one] a = Greater(h, exact)  [two] b = Greater(h, inexact) }"""
        plan = decide(context(text))
        assert narrow_labels(plan) == ["p", "one"]
        assert reason_of(plan, "two") == "makes no float and reads 'inexact', which is FP32"

    def test_casts_of_the_users_for_wide_readers_stay(self) -> None:
        plan = decide(context("g (float16[2] x) => (float[2] y) { [up] h = Cast<to = 1>(x)  [e] y = Exp(h) }"))
        assert reason_of(plan, "up") == "widens a value that is narrow already, for FP32 readers only"
        plan = decide(
            context("g (float16[2, 2] x) => (float[2, 2] y) { [up] h = Cast<to = 1>(x)  [p] y = MatMul(h, h) }")
        )
        assert narrow_labels(plan) == ["up", "p"]


def test_what_repair_widens_keeps_its_reason() -> None:
    given = context("g (float[2, 2] x) => (float[2, 2] y) { [p] h = MatMul(x, x)  [q] y = MatMul(h, h) }")
    refusal = Refusal(0, "repair", "it costs too much", Evidence("h", 2.0, 1.0))
    plan = decide(given, {0: refusal})
    assert narrow_labels(plan) == ["q"]
    first = plan.decisions[0]
    assert (first.rule, first.reason, first.evidence) == ("repair", "it costs too much", Evidence("h", 2.0, 1.0))


def test_a_plan_as_text() -> None:
    plan = decide(context("g (float[1] x) => (float[1] y) { [square] y = Mul(x, x) }", {"x": np.float32([300])}))
    assert plan.to_text().splitlines() == [
        "to fp16",
        f"fp16  Mul square (class follow): {reason_of(plan, 'square')}",
        "cast value 0 scope 0 to fp16",
        "cast value 1 scope 0 to fp32",
        "clamp y at output (beyond) to 65504, seen 90000",
    ]
