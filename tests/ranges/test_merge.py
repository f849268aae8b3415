"""Merging is associative and commutative; shares are exact or an upper bound, as each says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.formats import BF16, FP16
from converter.numerics.range_sums import RangeSums
from converter.numerics.rounding import round_to
from converter.ranges.merge import (
    headroom_bits,
    merge,
    overflow_share,
    share_at_or_above,
    share_below,
    subnormal_share,
    underflow_share,
)
from converter.types import ValueRange

relaxed = settings(max_examples=200, deadline=None, derandomize=True)
shapes = st.lists(st.integers(0, 3), max_size=3)
finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


def seen(values, shape=None) -> ValueRange:
    sums = RangeSums()
    array = np.array(values, np.float32)
    sums.add(array if shape is None else array.reshape(shape))
    return sums.result()


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(shapes)
    size = int(np.prod(shape))
    values = draw(st.lists(st.floats(width=32), min_size=size, max_size=size))
    return np.array(values, np.float32).reshape(shape)


# --------------------------------------------------------------------------------------------- merge


@relaxed
@given(a=arrays(), b=arrays(), c=arrays())
def test_merge_is_associative_and_commutative(a, b, c):
    x, y, z = seen(a), seen(b), seen(c)
    assert merge(x, y) == merge(y, x)
    assert merge(merge(x, y), z) == merge(x, merge(y, z))


@relaxed
@given(a=arrays(), b=arrays())
def test_merge_is_what_one_accumulator_sees(a, b):
    sums = RangeSums()
    sums.add(a)
    sums.add(b)
    assert merge(seen(a), seen(b)) == sums.result()


@relaxed
@given(a=arrays())
def test_nothing_seen_is_neutral(a):
    assert merge(seen(a), RangeSums().result()) == seen(a)


def test_a_batch_without_finite_elements_leaves_the_extremes():
    merged = merge(seen([np.nan, np.inf]), seen([3, 5]))
    assert (merged.minimum, merged.maximum, merged.absmin_nonzero, merged.nonfinite) == (3, 5, 3, 2)


def test_zeros_leave_the_smallest_magnitude():
    merged = merge(seen([0, 0]), seen([-4, 2]))
    assert (merged.minimum, merged.maximum, merged.absmin_nonzero, merged.zeros) == (-4, 2, 2, 2)


# -------------------------------------------------------------------------------------------- shares


@relaxed
@given(values=st.lists(finite_floats, max_size=30), exponent=st.integers(-126, 127))
def test_shares_at_powers_of_two_are_exact(values, exponent):
    magnitudes = np.abs(np.array(values, np.float32))
    nonzero = magnitudes[magnitudes > 0]
    below = np.count_nonzero(nonzero < 2.0**exponent) / max(1, nonzero.size)
    assert share_below(seen(values), 2.0**exponent) == pytest.approx(below)
    assert share_at_or_above(seen(values), 2.0**exponent) == pytest.approx(1 - below if nonzero.size else 0)


@relaxed
@given(values=st.lists(finite_floats, min_size=1, max_size=30), threshold=st.floats(2.0**-149, 2.0**127))
def test_shares_elsewhere_are_upper_bounds(values, threshold):
    magnitudes = np.abs(np.array(values, np.float64))
    nonzero = magnitudes[magnitudes > 0]
    exact = np.count_nonzero(nonzero < threshold) / max(1, nonzero.size)
    below, above = share_below(seen(values), threshold), share_at_or_above(seen(values), threshold)
    assert exact - 1e-12 <= below <= 1
    assert nonzero.size == 0 or 1 - exact - 1e-12 <= above <= 1


@relaxed
@given(values=st.lists(finite_floats, min_size=1, max_size=30))
@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
def test_shares_of_a_format_bound_what_rounding_does(fmt, values):
    x = np.array(values, np.float32)
    x = x[(x != 0) & (np.abs(x) != fmt.smallest_subnormal / 2)]
    rounded = round_to(x, fmt)
    size = max(1, x.size)
    assert underflow_share(seen(x), fmt) >= np.count_nonzero(rounded == 0) / size
    assert overflow_share(seen(x), fmt) >= np.count_nonzero(np.isinf(rounded)) / size
    small = np.count_nonzero((rounded != 0) & (np.abs(x) < fmt.smallest_normal))
    assert subnormal_share(seen(x), fmt) >= small / size


@pytest.mark.parametrize(
    ("values", "underflow", "subnormal", "overflow"),
    [
        ([], 0, 0, 0),
        ([0, 0, np.nan, np.inf], 0, 0, 0),
        ([1, 2, 3, 4], 0, 0, 0),
        ([1e-9, 1, 0, np.inf], 0.5, 0, 0),
        ([2.0**-25 * 1.01, 2.0**-14, 1, 1], 0, 0.25, 0),
        ([2.0**-26, 2.0**-20, 1, 1e6], 0.25, 0.25, 0.25),
        ([65504, 65519, 1, 1], 0, 0, 0),
        ([1e30, -1e30], 0, 0, 1),
    ],
    ids=str,
)
def test_shares_of_fp16(values, underflow, subnormal, overflow):
    x = seen(values)
    assert (underflow_share(x, FP16), subnormal_share(x, FP16), overflow_share(x, FP16)) == (
        underflow,
        subnormal,
        overflow,
    )


def test_the_last_binade_counts_whole_once_one_element_overflows():
    assert overflow_share(seen([40_000, 65_519, 1, 1]), FP16) == 0
    assert overflow_share(seen([40_000, 65_520, 1, 1]), FP16) == 0.5


def test_the_limit_of_underflow_itself_is_not_counted():
    x = np.array([2.0**-25, 1], np.float32)
    assert round_to(x, FP16)[0] == 0
    assert underflow_share(seen(x), FP16) == 0


def test_bf16_underflow_is_a_bound_among_subnormals():
    assert underflow_share(seen([1e-44, 1e-39, 1, 1]), BF16) == 0.5
    assert underflow_share(seen([1e-39, 1]), BF16) == 0


# ------------------------------------------------------------------------------------------ headroom


@pytest.mark.parametrize(
    ("values", "bits"), [([65504], 0.0), ([-32752, 1], 1.0), ([131008], -1.0), ([0], None), ([], None)]
)
def test_headroom_in_fp16(values, bits):
    assert headroom_bits(seen(values), FP16) == bits
