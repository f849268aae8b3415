"""The report on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from converter.report.terminal_view import render


def printed(report, width=80, colour=False, **options):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None)
    console.print(render(report, **options))
    return stream.getvalue()


@pytest.mark.parametrize("name", ["passing", "failing", "empty"])
def test_golden_at_80_columns_without_colour(name, golden, request):
    text = printed(request.getfixturevalue(name))
    golden(f"{name}.txt", re.sub(" +\n", "\n", text).encode())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(failing, hostile, width):
    for report in (failing, hostile):
        assert max(map(len, printed(report, width).splitlines())) <= width


def test_figures_stay_whole_at_80_columns(failing):
    text = printed(failing)
    assert "3.10e-1" in text
    assert "OVER LIMIT" in text
    assert "12,288" in text


def test_colour_only_adds_to_the_words(failing):
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed(failing, colour=True))
    assert plain == printed(failing)
    assert printed(failing).startswith("FAIL  encoder.onnx to FP16\n")


def test_no_escape_or_markup_of_the_model_reaches_the_terminal(hostile):
    text = printed(hostile, worst=20)
    assert {c for c in text if not c.isprintable()} == {"\n"}
    assert "[red]" in text
    assert ":smile:" in text
    coloured = printed(hostile, colour=True, worst=20)
    assert set(re.findall(r"\x1b[^m]*m", coloured)) <= {"\x1b[1;31m", "\x1b[0m", "\x1b[1m"}


def test_shows_as_many_layers_as_asked(failing):
    assert printed(failing, 200, worst=2).count("/encoder/layer.0/ffn/") < printed(failing, 200, worst=5).count(
        "/encoder/layer.0/ffn/"
    )


def test_says_little_when_there_is_nothing(empty):
    assert printed(empty).splitlines()[:2] == [
        "UNCHECKED  encoder.onnx to BF16",
        "Nothing was compared: the model was converted without validation.",
    ]
