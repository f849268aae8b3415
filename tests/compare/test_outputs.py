"""Outputs over batches: floats, integers, strings, sequences, optionals, shapes."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from converter.compare.outputs import OutputRecord, compare_outputs, mean_interval
from converter.formats import FP16
from tests.models.run import floats


def record(*pairs: tuple[Any, Any]) -> OutputRecord:
    found = OutputRecord("y", FP16)
    for batch, (reference, value) in enumerate(pairs):
        found.add(reference, value, batch)
    return found


class TestFloats:
    def test_the_worst_batch_counts(self) -> None:
        found = record(
            (floats([3, 4]), floats([3, 4])), (floats([3, 4]), floats([3, 4.5])), (floats([3, 4]), floats([3, 4.1]))
        )
        assert found.figures is not None
        assert found.figures.rel_l2_error == pytest.approx(0.1)
        assert found.worst_batch == 1
        assert found.errors == pytest.approx([0.0, 0.1, 0.02])
        assert found.mismatches == 0

    def test_a_byte_order_that_is_spelled_out(self) -> None:
        found = record((np.array([1, 2], "<f4"), floats([1, 2])))
        assert (found.mismatches, found.figures is not None and found.figures.equal) == (0, True)

    def test_doubles(self) -> None:
        found = record((np.array([1.0]), np.array([1.0 + 1e-12])))
        assert found.figures is not None
        assert found.figures.rel_l2_error == pytest.approx(1e-12, rel=1e-3)

    def test_an_empty_output(self) -> None:
        found = record((np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)))
        assert found.figures is not None
        assert (found.figures.count, found.figures.rel_l2_error, found.shape) == (0, 0.0, (0, 3))

    def test_another_shape(self) -> None:
        found = record((floats([1, 2]), floats([1, 2, 3])))
        assert (found.mismatches, found.problem, found.errors) == (1, "shape [2] became [3]", [math.inf])


class TestOthers:
    @pytest.mark.parametrize(
        ("reference", "value", "count"),
        [(np.array([1, 2, 3]), np.array([1, 5, 3]), 1), (np.array([True, False]), np.array([True, True]), 1),
         (np.array(["a", "b"], object), np.array(["a", "c"], object), 1),
         (np.array([1, 2], ml_dtypes.float8_e4m3fn), np.array([1, 2], ml_dtypes.float8_e4m3fn), 0),
         (np.array([1, 2], ml_dtypes.float8_e4m3fn), np.array([1, 4], ml_dtypes.float8_e4m3fn), 1),
         (np.array([1, -2], ml_dtypes.int4), np.array([1, -2], ml_dtypes.int4), 0), (None, None, 0),
         (None, floats([1]), 1)],
        ids=["int", "bool", "string", "float8", "float8 off", "int4", "no element", "an element"],
    )  # fmt: skip
    def test_exactly(self, reference: Any, value: Any, count: int) -> None:
        found = record((reference, value))
        assert found.mismatches == count
        assert found.figures is None


class TestSequences:
    def test_all_elements_together(self) -> None:
        found = record(([floats([3]), floats([4])], [floats([3]), floats([4.5])]))
        assert found.figures is not None
        assert found.figures.rel_l2_error == pytest.approx(0.1)

    def test_another_length(self) -> None:
        found = record(([floats([3])], [floats([3]), floats([4])]))
        assert (found.mismatches, found.problem) == (1, "a sequence of 1 elements became 2")

    def test_no_sequence_any_more(self) -> None:
        found = record(([floats([3])], floats([3])))
        assert found.problem == "a sequence of 1 elements became no sequence"

    def test_an_element_of_another_shape(self) -> None:
        assert record(([floats([3])], [floats([3, 4])])).problem == "shape [1] became [2]"

    def test_an_empty_one(self) -> None:
        found = record(([], []))
        assert (found.mismatches, found.figures) == (0, None)


def test_a_run_that_failed_counts_for_every_output() -> None:
    records = {n: OutputRecord(n, FP16) for n in "ab"}
    compare_outputs(records, {"a": floats([1]), "b": floats([1])}, None, 0)
    assert [(r.mismatches, r.problem, r.errors) for r in records.values()] == [
        (1, "the mixed model could not be run to its end", [math.inf])
    ] * 2


class TestIntervals:
    @pytest.mark.parametrize(
        ("errors", "mean", "interval"),
        [([], None, None), ([1.0], 1.0, None), ([math.inf], None, None), ([1.0, math.inf], 1.0, None),
         ([1.0, 1.0], 1.0, (1.0, 1.0))],
    )  # fmt: skip
    def test_edges(self, errors: list[float], mean: float | None, interval: tuple[float, float] | None) -> None:
        assert mean_interval(errors) == (mean, interval)

    def test_students_t(self) -> None:
        """Three batches: t(0.975, 2) = 4.303, s = 1, so the half width is 4.303 / sqrt(3)."""
        mean, interval = mean_interval([4.0, 5.0, 6.0])
        assert mean == 5.0
        assert interval == pytest.approx((5 - 4.303 / math.sqrt(3), 5 + 4.303 / math.sqrt(3)))

    def test_it_does_not_go_below_zero(self) -> None:
        interval = mean_interval([0.1, 5.0])[1]
        assert interval is not None
        assert interval[0] == 0.0

    def test_between_entries_the_wider_quantile_counts(self) -> None:
        errors = [float(k % 2) for k in range(12)]  # 11 degrees: the entry for 10
        mean, interval = mean_interval(errors)
        assert mean is not None
        assert interval is not None
        assert interval[1] - mean == pytest.approx(2.228 * np.std(errors, ddof=1) / math.sqrt(12))
