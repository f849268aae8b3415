"""EXACT rows commute with rounding bit for bit, NaN payload and the sign of zero aside."""

from __future__ import annotations

import numpy as np
import pytest

from converter.formats import NARROW_FORMATS, FloatFormat
from converter.policy.rows.reading import READERS
from converter.types import OpClass

from .evaluate import fp32_kernel, round_to, rounded_feeds, rounded_outputs
from .op_inputs import Case, cases

EXACT_CASES = [case for case in cases() if case.row.op_class is OpClass.EXACT]
each_case = pytest.mark.parametrize("case", EXACT_CASES, ids=lambda case: f"{case.row.op_type}-{case.name}")
each_format = pytest.mark.parametrize("fmt", NARROW_FORMATS.values(), ids=NARROW_FORMATS.keys())


@each_case
@each_format
def test_every_output_is_a_number_of_the_format(case: Case, fmt: FloatFormat) -> None:
    made = fp32_kernel(case)(rounded_feeds(case, fmt))
    for x in made:
        if x.dtype == np.float32:
            np.testing.assert_array_equal(x, round_to(x, fmt))


@each_case
@each_format
def test_rounding_before_is_rounding_after(case: Case, fmt: FloatFormat) -> None:
    run = fp32_kernel(case)
    before, after = run(rounded_feeds(case, fmt)), rounded_outputs(case, run(case.feeds), fmt)
    for first, second in zip(before, after, strict=True):
        if first.dtype == np.float32:
            np.testing.assert_array_equal(first, second)


def test_readers_have_no_float_output() -> None:
    """What they read cannot be compared after rounding: two numbers may have become equal."""
    readers = {row.op_type for row in READERS}
    read = [case for case in EXACT_CASES if case.row.op_type in readers]
    assert read
    assert all(x.dtype != np.float32 for case in read for x in fp32_kernel(case)(case.feeds))
