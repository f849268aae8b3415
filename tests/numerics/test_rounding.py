"""Rounding is tested on every pattern of every format, then by its algebra, then on named hazards."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from converter.errors import OptionError
from converter.formats import BF16, FP16, FP32, TF32, FloatFormat
from converter.numerics import rounding
from converter.numerics.rounding import IEEE, PROFILES, compose_profiles, profile_named, round_to, round_wide

FORMATS = [FP16, BF16, TF32]
ASCEND = PROFILES["ascend"]
both_and_tf32 = pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
stored = pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda fmt: fmt.name)
profiles = pytest.mark.parametrize("profile", list(PROFILES.values()), ids=lambda profile: profile.name)
relaxed = settings(max_examples=150, deadline=None, derandomize=True)
any_float = st.floats(width=32, allow_nan=False)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit, signs of zero included; any NaN equals any NaN."""
    expected = np.asarray(expected, np.float32)
    assert actual.dtype == np.float32
    same = (actual.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(actual) & np.isnan(expected))
    assert same.all(), (actual[~same][:5], expected[~same][:5])


def non_negative(fmt: FloatFormat) -> np.ndarray:
    """Every finite value of the format from 0 up, in order, as float32 (bits: 0, 1, 2, ...)."""
    if fmt is TF32:
        dropped = FP32.mantissa_bits - TF32.mantissa_bits
        values = (np.arange(2**18, dtype=np.uint32) << dropped).view(np.float32)
    else:
        values = np.arange(2**15, dtype=np.uint16).view(fmt.dtype).astype(np.float32)
    return values[np.isfinite(values)]


def every_pattern(fmt: FloatFormat) -> np.ndarray:
    return rounding.from_storage(np.arange(2**16, dtype=np.uint16).view(fmt.dtype))


def random_patterns(count: int) -> np.ndarray:
    bits = np.random.default_rng(7).integers(0, 2**32, count, dtype=np.uint64)
    return bits.astype(np.uint32).view(np.float32)


# ------------------------------------------------------------------------------------ every pattern


@stored
def test_every_pattern_is_a_fixed_point(fmt):
    x = every_pattern(fmt)
    assert x.size == 65_536
    assert_same_bits(round_to(x, fmt), x)
    finite = x[~np.isnan(x)]
    assert_same_bits(round_wide(finite.astype(np.float64), fmt), finite)


def test_every_tf32_value_is_a_fixed_point():
    x = non_negative(TF32)
    assert_same_bits(round_to(x, TF32), x)
    assert_same_bits(round_to(-x, TF32), -x)


@both_and_tf32
@pytest.mark.parametrize("sign", [1, -1])
def test_midpoints_go_to_the_even_neighbour_and_their_neighbours_to_the_nearer(fmt, sign):
    lower = non_negative(fmt)
    # Behind the largest finite value the next one up would be a power of two; it stands for infinity.
    upper = np.append(lower[1:].astype(np.float64), 2 * lower[-1].astype(np.float64) - lower[-2])
    middle = (lower + upper) / 2
    assert middle[-1] == fmt.overflow_threshold
    rounded_up = np.append(lower[1:], np.float32(np.inf))
    even = np.where(np.arange(lower.size) % 2 == 0, lower, rounded_up)
    sign = np.float32(sign)
    for dtype, rounder in ((np.float32, round_to), (np.float64, round_wide)):
        centre = middle.astype(dtype)
        assert (centre == middle).all()
        assert_same_bits(rounder(sign * centre, fmt), sign * even)
        assert_same_bits(rounder(sign * np.nextafter(centre, dtype(np.inf)), fmt), sign * rounded_up)
        assert_same_bits(rounder(sign * np.nextafter(centre, dtype(0)), fmt), sign * lower)


@stored
def test_agrees_with_numpy_and_ml_dtypes_on_random_patterns(fmt):
    x = random_patterns(300_000)
    with np.errstate(all="ignore"):
        expected = x.astype(fmt.dtype).astype(np.float32)
    assert_same_bits(round_to(x, fmt), expected)
    assert_same_bits(rounding.from_storage(rounding.to_storage(x, fmt)), expected)


def test_agrees_with_torch():
    torch = pytest.importorskip("torch", reason="torch is an optional extra")
    x = random_patterns(100_000)
    for fmt, dtype in ((FP16, torch.float16), (BF16, torch.bfloat16)):
        assert_same_bits(round_to(x, fmt), torch.from_numpy(x).to(dtype).float().numpy())


def test_float64_to_fp16_agrees_with_numpy():
    x = np.random.default_rng(3).standard_normal(200_000) * 10.0 ** np.linspace(-9, 6, 200_000)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    assert_same_bits(round_wide(x, FP16), expected)


def test_float64_to_fp32_agrees_with_numpy():
    x = np.random.default_rng(4).standard_normal(200_000) * 10.0 ** np.linspace(-47, 40, 200_000)
    with np.errstate(over="ignore"):
        assert_same_bits(round_wide(x, FP32), x.astype(np.float32))


# ------------------------------------------------------------------------------------------ algebra


@both_and_tf32
@profiles
@relaxed
@given(values=st.lists(any_float, min_size=1, max_size=20))
def test_rounding_is_idempotent_and_odd(fmt, profile, values):
    x = f32(*values)
    once = round_to(x, fmt, profile)
    assert_same_bits(round_to(once, fmt, profile), once)
    assert_same_bits(round_to(-x, fmt, profile), -once)


@both_and_tf32
@profiles
@relaxed
@given(values=st.lists(any_float, min_size=2, max_size=20))
def test_rounding_is_monotone(fmt, profile, values):
    rounded = round_to(np.sort(f32(*values)), fmt, profile)
    assert (rounded[1:] >= rounded[:-1]).all()


@both_and_tf32
@relaxed
@given(value=any_float)
def test_error_is_at_most_half_an_ulp(fmt, value):
    assume(abs(value) < fmt.overflow_threshold)
    x = f32(value)
    assert abs(float(round_to(x, fmt)[0]) - float(x[0])) <= rounding.ulp(x, fmt)[0] / 2


@both_and_tf32
@relaxed
@given(value=st.floats(width=32, allow_nan=False))
def test_both_carriers_agree(fmt, value):
    assert_same_bits(round_wide(np.array([value]), fmt), round_to(f32(value), fmt))


@relaxed
@given(value=st.integers(-(2**63), 2**63 - 1) | st.integers(0, 60).map(lambda n: 2**n + 2 ** max(0, n - 8) + 1))
def test_64_bit_integers_round_once(value):
    rounded = Fraction(float(round_wide(np.array([value], np.int64), BF16)[0]))
    spacing = Fraction(rounding.ulp(np.array([float(abs(rounded))]), BF16)[0])
    error = abs(rounded - value)
    assert error <= spacing / 2
    tie_to_odd = error == spacing / 2 and (rounded / spacing) % 2 == 1
    assert not tie_to_odd


# ------------------------------------------------------------------------------------- named hazards


def test_double_rounding_65519_9999999_is_not_infinite():
    x = np.array([65519.9999999, -65519.9999999])
    by_way_of_float32 = round_to(x.astype(np.float32), FP16)
    assert np.isinf(by_way_of_float32).all()
    assert_same_bits(round_wide(x, FP16), f32(65504, -65504))


@both_and_tf32
def test_double_rounding_just_above_a_midpoint(fmt):
    x = np.array([1 + fmt.eps / 2 + 2.0**-40])
    assert_same_bits(round_to(x.astype(np.float32), fmt), f32(1))
    assert_same_bits(round_wide(x, fmt), f32(1 + fmt.eps))


@pytest.mark.parametrize(
    ("value", "dtype", "fmt", "expected"),
    [
        (2**62 + 2**54, np.int64, BF16, 2.0**62),
        (2**62 + 2**54 + 1, np.int64, BF16, 2.0**62 + 2.0**55),
        (-(2**62) - 2**54 - 1, np.int64, BF16, -(2.0**62) - 2.0**55),
        (2**64 - 1, np.uint64, BF16, 2.0**64),
        (-(2**63), np.int64, BF16, -(2.0**63)),
        (2**24 + 1, np.int32, FP32, 2.0**24),
        (2049, np.int32, FP16, 2048),
        (2051, np.uint16, FP16, 2052),
        (65519, np.int64, FP16, 65504),
        (65520, np.int64, FP16, np.inf),
        (True, np.bool_, FP16, 1),
    ],
    ids=str,
)
def test_integers(value, dtype, fmt, expected):
    assert_same_bits(round_wide(np.array([value], dtype), fmt), f32(expected))


def test_one_plus_a_ten_thousandth_is_one_in_fp16():
    assert round_to(f32(1 + 0.0001), FP16)[0] == 1


def test_dropping_sixteen_bits_is_not_bf16_rounding():
    x = f32(1 + 1.5 * BF16.eps)
    dropped = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    assert dropped[0] == np.float32(1 + BF16.eps)
    assert round_to(x, BF16)[0] == np.float32(1 + 2 * BF16.eps)


@both_and_tf32
@profiles
def test_zero_keeps_its_sign_and_nan_stays(fmt, profile):
    x = f32(0.0, -0.0, np.nan, 1e-44, -1e-44)
    expected = f32(0.0, -0.0, np.nan, 0.0, -0.0)
    assert_same_bits(round_to(x, fmt, profile), expected)
    assert_same_bits(round_wide(x.astype(np.float64), fmt, profile), expected)


def test_every_nan_pattern_class_stays_nan():
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], np.uint32)
    for fmt in FORMATS:
        assert np.isnan(round_to(bits.view(np.float32), fmt)).all()


def test_shapes_and_strides():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) + np.float32(0.0001)
    assert_same_bits(round_to(x.T, FP16), x.astype(np.float16).astype(np.float32).T)
    assert round_to(np.float32(1.5).reshape(()), FP16).shape == ()
    assert round_to(np.empty((0, 3), np.float32), BF16).shape == (0, 3)
    assert round_wide(np.empty((0, 3)), BF16).shape == (0, 3)


def test_long_arrays_are_rounded_piece_by_piece():
    x = np.random.default_rng(1).standard_normal(100_003).astype(np.float32)
    x[70_000] = np.float32(3e38)
    assert_same_bits(round_to(x, BF16), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_fp32_is_a_copy():
    x = f32(1e-45, 1 / 3, np.inf, -0.0)
    out = round_to(x, FP32, ASCEND)
    assert_same_bits(out, x)
    assert not np.shares_memory(out, x)
    assert_same_bits(round_wide(x.astype(np.float64), FP32, ASCEND), x)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match=r"^round_to takes float32 and got float64; use round_wide, which rounds once$"):
        round_to(np.zeros(1), FP16)
    text = r"^round_wide takes floats of at most 64 bits, integers or booleans and got complex64$"
    with pytest.raises(TypeError, match=text):
        round_wide(np.zeros(1, np.complex64), FP16)


# ------------------------------------------------------------------------------------------ profiles


@pytest.mark.parametrize(
    ("value", "ieee", "ascend"),
    [
        (65519.0, 65504, 65504),
        (65520.0, np.inf, 65504),
        (-1e30, -np.inf, -65504),
        (np.inf, np.inf, 65504),
        (-np.inf, -np.inf, -65504),
        (2.0**-14, 2.0**-14, 2.0**-14),
        (2.0**-14 - 2.0**-24, 2.0**-14 - 2.0**-24, 0.0),
        (-(2.0**-15), -(2.0**-15), -0.0),
        # Rounds up to the smallest normal, and flushing comes after rounding.
        (2.0**-14 - 2.0**-26, 2.0**-14, 2.0**-14),
        (2.0**-25, 0.0, 0.0),
    ],
)
def test_ascend_saturates_and_flushes(value, ieee, ascend):
    assert_same_bits(round_to(f32(value), FP16), f32(ieee))
    assert_same_bits(round_to(f32(value), FP16, ASCEND), f32(ascend))
    assert_same_bits(round_wide(np.array([value]), FP16, ASCEND), f32(ascend))


@both_and_tf32
@relaxed
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_ascend_is_ieee_then_saturate_then_flush(fmt, values):
    x = f32(*values)
    apart = rounding.flush_subnormals(rounding.saturate(round_to(x, fmt), fmt), fmt)
    assert_same_bits(round_to(x, fmt, ASCEND), apart)


def test_narrow_accumulate_does_not_change_rounding():
    x = random_patterns(10_000)
    assert_same_bits(round_to(x, FP16, PROFILES["narrow-accumulate"]), round_to(x, FP16))


def test_profiles_are_named_after_their_key():
    assert [profile.name for profile in PROFILES.values()] == list(PROFILES)
    assert profile_named("ieee") == IEEE


def test_profiles_compose():
    ascend, narrow = PROFILES["ascend"], PROFILES["narrow-accumulate"]
    both = profile_named("narrow-accumulate+ascend")
    assert both == compose_profiles(ascend, narrow) == compose_profiles(narrow, ascend)
    assert both.name == "ascend+narrow-accumulate"
    assert (both.overflow, both.flush_subnormals, both.narrow_accumulate) == ("saturate", True, True)
    assert compose_profiles(both, ascend) == both
    assert compose_profiles(IEEE, ascend) == ascend


def test_an_unknown_profile_is_refused():
    text = r"^unknown emulation profile 'tpu'; known are ieee, ascend, narrow-accumulate, joined by '\+'$"
    with pytest.raises(OptionError, match=text):
        profile_named("ascend+tpu")


# ------------------------------------------------------------------------ parts, neighbours, storage


def test_saturate():
    x = f32(65504, 65519, np.inf, -np.inf, -1e9, np.nan, 1)
    assert_same_bits(rounding.saturate(x, FP16), f32(65504, 65504, 65504, -65504, -65504, np.nan, 1))


def test_flush_subnormals():
    x = f32(6e-5, -6e-5, 2.0**-14, 0.0, np.nan, -np.inf)
    assert_same_bits(rounding.flush_subnormals(x, FP16), f32(0.0, -0.0, 2.0**-14, 0.0, np.nan, -np.inf))


@both_and_tf32
def test_ulp_is_the_distance_to_the_next_value_up(fmt):
    values = non_negative(fmt).astype(np.float64)
    assert (rounding.ulp(values[:-1], fmt) == np.diff(values)).all()
    assert rounding.ulp(-values[-1:], fmt) == values[-1] - values[-2]


def test_ulp_agrees_with_spacing():
    # Not at the largest value, whose upper neighbour is infinity.
    values = non_negative(FP16)[:-1]
    assert (rounding.ulp(values, FP16) == np.spacing(values.astype(np.float16)).astype(np.float64)).all()


@pytest.mark.parametrize(("value", "expected"), [(512, 0.5), (1024, 1.0), (0, 2.0**-24), (1e9, 32), (-3e-5, 2.0**-24)])
def test_ulp_of_fp16(value, expected):
    assert rounding.ulp(f32(value), FP16) == expected


def test_ulp_of_nonfinite_is_nan():
    assert np.isnan(rounding.ulp(f32(np.nan, np.inf, -np.inf), BF16)).all()


def test_storage():
    x = f32(1 / 3, 1e6, -0.0)
    assert rounding.to_storage(x, FP16).dtype == np.float16
    assert rounding.to_storage(x, BF16).dtype == ml_dtypes.bfloat16
    assert_same_bits(rounding.to_storage(x, TF32), round_to(x, TF32))
    assert_same_bits(rounding.to_storage(x, FP32), x)
    assert rounding.from_storage(x) is x
