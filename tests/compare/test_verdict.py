"""Limits and their edges: what passes exactly, what breaks, what nothing can be said about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from converter.compare.verdict import judge
from converter.numerics.error_sums import ErrorSums
from converter.types import ErrorFigures, OutputComparison, OutputTolerance, VerdictReason
from tests.models.run import floats


def figures(reference: list[float], value: list[float]) -> ErrorFigures:
    sums = ErrorSums()
    sums.add(floats(reference), floats(value))
    return sums.figures()


def output(found: ErrorFigures | None, mismatches: int = 0, **limits: Any) -> OutputComparison:
    return OutputComparison("y", "fp16", "tensor(float)", (2,), found, None, OutputTolerance(**limits), mismatches, 0)


def reasons(found: ErrorFigures | None, mismatches: int = 0, **limits: Any) -> list[tuple[str, str]]:
    verdict = judge([output(found, mismatches, **limits)])
    assert verdict.status == ("fail" if verdict.reasons else "pass")
    return [(r.limit, r.message) for r in verdict.reasons]


EQUAL = figures([1, 2], [1, 2])
OFF = figures([3, 4], [3, 4.5])  # relative L2 error 0.1, 20 dB


def test_nothing_to_judge_passes() -> None:
    assert judge([]).status == "pass"


def test_problems_of_the_run_come_first() -> None:
    problem = VerdictReason("runs", None, None, message="it broke")
    verdict = judge([output(OFF, max_rel_l2=0.01)], [problem])
    assert [r.limit for r in verdict.reasons] == ["runs", "max_rel_l2"]


class TestRelative:
    def test_at_the_limit_passes(self) -> None:
        assert OFF.rel_l2_error is not None
        assert reasons(OFF, max_rel_l2=OFF.rel_l2_error) == []
        assert reasons(OFF, max_rel_l2=float(np.nextafter(OFF.rel_l2_error, 0))) == [
            ("max_rel_l2", "output 'y': relative L2 error 0.1, allowed 0.1")
        ]

    def test_zero_allowed(self) -> None:
        assert reasons(EQUAL, max_rel_l2=0.0) == []
        assert len(reasons(OFF, max_rel_l2=0.0)) == 1

    def test_no_limit(self) -> None:
        assert reasons(OFF) == []

    def test_a_reference_of_zeros(self) -> None:
        assert reasons(figures([0, 0], [0, 0]), max_rel_l2=0.0) == []
        assert reasons(figures([0, 0], [0, 1e-3]), max_rel_l2=1e-2) == []
        assert len(reasons(figures([0, 0], [0, 1]), max_rel_l2=1e-2)) == 1

    def test_an_undefined_error_is_no_pass(self) -> None:
        unknown = replace(OFF, rel_l2_error=None)
        assert reasons(unknown, max_rel_l2=1.0) == [
            ("max_rel_l2", "output 'y': relative L2 error undefined (FP32 is all zeros), allowed 1")
        ]


class TestSqnr:
    def test_at_the_limit_passes(self) -> None:
        assert OFF.sqnr_db == pytest.approx(20.0)
        assert reasons(OFF, min_sqnr_db=OFF.sqnr_db) == []
        assert reasons(OFF, min_sqnr_db=20.1) == [
            ("min_sqnr_db", "output 'y': SQNR 20.0 dB, at least 20.1 dB is asked for")
        ]

    def test_equal_outputs_have_all_of_it(self) -> None:
        assert reasons(EQUAL, min_sqnr_db=300.0) == []

    def test_a_reference_of_zeros_says_nothing(self) -> None:
        assert reasons(figures([0, 0], [0, 1]), min_sqnr_db=40.0) == []


class TestOthers:
    def test_absolute(self) -> None:
        assert reasons(OFF, max_abs=0.5) == []
        assert reasons(OFF, max_abs=0.4) == [("max_abs", "output 'y': largest absolute error 0.5, allowed 0.4")]

    def test_top1(self) -> None:
        agreed = replace(OFF, top1_agreement=0.9)
        assert reasons(agreed, min_top1_agreement=0.9) == []
        assert reasons(agreed, min_top1_agreement=1.0) == [
            ("min_top1_agreement", "output 'y': the largest score agrees in 90.00% of rows, 100.00% asked")
        ]
        assert reasons(OFF, min_top1_agreement=1.0) == []

    def test_misplaced_nan_and_infinity_break_without_any_limit(self) -> None:
        assert reasons(figures([1, 2], [1, np.inf])) == [
            ("misplaced_nonfinite",
             "output 'y': 1 NaN or infinite elements where FP32 has none, or the other way round")
        ]  # fmt: skip
        assert reasons(figures([1, np.inf], [1, np.inf]), max_rel_l2=0.0) == []
        assert len(reasons(figures([1, np.inf], [1, -np.inf]))) == 1
        assert len(reasons(figures([1, np.nan], [1, 5]))) == 1

    def test_elements_that_are_no_floats(self) -> None:
        assert reasons(None, mismatches=0, max_rel_l2=0.0) == []
        assert reasons(None, mismatches=3) == [
            ("mismatches", "output 'y': 3 elements (or shapes) that are no floats differ from FP32")
        ]
