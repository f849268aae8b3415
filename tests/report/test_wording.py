"""Numbers and names as text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.report import wording


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/encoder/MatMul", "/encoder/MatMul"),
        ("größe", "größe"),
        ("模型", "模型"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x1b[31m", "\\x1b[31m"),
        ("abc\u202etxt", "abc\\u202etxt"),
        ("\u2028\u2029\u200b\ufeff", "\\u2028\\u2029\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("\x9f", "\\x9f"),
        ("", ""),
    ],
)
def test_printable(text, shown):
    assert wording.printable(text) == shown


def test_long_text_loses_its_middle():
    assert wording.printable("a" * 50 + "b" * 50, 11) == "aaaaa…bbbbb"
    assert wording.printable("x" * 1_000_000, 40) == "x" * 20 + "…" + "x" * 19


@given(st.text(st.characters(), max_size=300), st.integers(10, 200))
def test_printable_text_has_no_control_or_format_character(text, limit):
    shown = wording.printable(text, limit)
    assert not {unicodedata.category(character)[0] for character in shown} & {"C"}
    assert not set("\u2028\u2029") & set(shown)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0"), (3.12e-4, "3.12e-4"), (1.0, "1.00e0"), (-2.5e10, "-2.50e10"), (9.999e-4, "1.00e-3")],
)
def test_figure(value, shown):
    assert wording.figure(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (65504.0, "65,504"),
        (71_204.4, "71,204"),
        (3.14159, "3.142"),
        (0.05, "0.05"),
        (0.004, "4.00e-3"),
        (-3.4028235e38, "-3.40e38"),
    ],
)
def test_number(value, shown):
    assert wording.number(value) == shown


def test_a_value_beside_its_limit_is_an_error_or_a_count():
    assert (wording.measured(2.1e-3), wording.measured(1204.0), wording.measured(None)) == ("2.10e-3", "1,204", "–")


def test_a_non_finite_number_shows_its_name():
    record = {"bound": None, "bound_nonfinite": "-inf", "absmax": None, "touched": 3}
    assert wording.of(record, "bound", wording.number) == "-inf"
    assert wording.of(record, "absmax", wording.number) == "–"
    assert wording.of(record, "touched", wording.count) == "3"


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "–"), (0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.999, "99.9 %"), (0.001, "0.1 %"), (0.914, "91 %")],
)
def test_percent(share, shown):
    assert wording.percent(share) == shown


@pytest.mark.parametrize(
    ("amount", "shown"),
    [(None, "–"), (0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (438_021_733, "438 MB"), (5_360_000_000, "5.36 GB"),
     (10**15, "1e+03 TB"), (-352, "-352 B"), (-5_000_000, "-5 MB")],
)  # fmt: skip
def test_size(amount, shown):
    assert wording.size(amount) == shown


def test_small_words():
    assert (wording.fixed(None, 1), wording.fixed(73.71, 1, " dB"), wording.count(None), wording.count(12345)) == (
        "–",
        "73.7 dB",
        "–",
        "12,345",
    )
    assert (wording.signed(None), wording.signed(2.34), wording.signed(-0.9, " bits")) == ("–", "+2.3", "-0.9 bits")
    assert (wording.shape([1, 3]), wording.shape([])) == ("1×3", "scalar")
    assert (wording.plural(1, "cast"), wording.plural(2000, "cast"), wording.plural(2, "batch", "batches")) == (
        "1 cast",
        "2,000 casts",
        "2 batches",
    )
    assert (wording.label("fp16"), wording.label("none")) == ("FP16", "–")
