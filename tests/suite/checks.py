"""What the operator suite has to fulfil in one format; the two test files beside this name the format."""

from __future__ import annotations

from typing import ClassVar

import pytest

from .summary import EXEMPT, check_golden, lines, outcomes, should_be_narrow

PASS_SHARE = 0.95
"""Least share of the cases that ONNX Runtime runs in FP32 that has to pass."""


@pytest.mark.suite
class OperatorSuite:
    """All node tests of onnx in the format ``to``."""

    to: ClassVar[str]

    def test_no_graph_is_invalid(self) -> None:
        found = [o for o in outcomes(self.to) if o.status == "invalid"]
        assert not found, lines(found)

    def test_no_wrong_number_hides_behind_a_pass(self) -> None:
        found = [o for o in outcomes(self.to) if o.status == "wrong"]
        assert not found, lines(found)

    def test_nothing_crashes(self) -> None:
        found = [o for o in outcomes(self.to) if o.status == "crashed"]
        assert not found, lines(found)

    def test_what_runs_passes(self) -> None:
        runnable = [o for o in outcomes(self.to) if not o.runs]
        passed = [o for o in runnable if o.status == "pass"]
        others = [o for o in runnable if o.status != "pass"]
        assert len(passed) >= PASS_SHARE * len(runnable), lines(others)

    def test_what_runs_is_refused_for_its_opset_only(self) -> None:
        found = [o for o in outcomes(self.to) if o.status == "refused" and not o.runs]
        assert all("the model uses opset 1; narrowcast needs at least 7" in o.reason for o in found), lines(found)

    def test_every_operator_that_may_be_is_narrow_somewhere(self) -> None:
        narrow = {op for o in outcomes(self.to) for domain, op in o.narrow if domain == ""}
        assert should_be_narrow(self.to) - narrow == set(EXEMPT[self.to])

    def test_counts_and_refusals_are_pinned(self) -> None:
        check_golden(self.to)
