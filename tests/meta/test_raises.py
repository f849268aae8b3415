"""Every ``raise`` with a message has a test with its text.

A message is code: a phrase of its fixed words, as they stand in the source, has to occur in some test.  ``UNTESTED``
lists what is left, by the message's longest phrase; an entry that is tested, or no longer raised, fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("converter",)
MIN_LENGTH = 14
"""Shorter phrases ("is", "of the model") prove nothing."""

UNTESTED: frozenset[str] = frozenset(
    (
        "PyTorch cannot export it",
        "PyTorch programs need the package",
        "TorchScript cannot be turned into ONNX in any of",
        "a Hugging Face folder needs the package transformers",
        "export the model where you trust it",
        "give the folder that has them beside their config",
        "is no JSON object",
        "it takes tensors only",
        "or it needs more memory than there is",
        "pickled weights are not read",
    )
)
"""Of PyTorch programs, whose tests need its package."""


def sources() -> list[Path]:
    return [p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))]


@cache
def test_texts() -> str:
    """All texts of all tests but this one, with the marks of regular expressions taken out, on one line."""
    strings: list[str] = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name != "test_raises.py":
            strings += (
                found.value.replace("\\", "")
                for found in ast.walk(ast.parse(path.read_text()))
                if isinstance(found, ast.Constant) and isinstance(found.value, str)
            )
    return squeezed("\n".join(strings))


test_texts.__test__ = False  # type: ignore[attr-defined]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def messages(tree: ast.Module) -> Iterator[tuple[int, list[str]]]:
    """Line and fixed pieces of every message that a raise (or a maker of errors) is given."""
    for found in ast.walk(tree):
        if isinstance(found, ast.Raise) and isinstance(found.exc, ast.Call):
            for argument in found.exc.args[:2]:
                pieces = list(fixed(argument))
                if pieces:
                    yield found.lineno, pieces


def fixed(expression: ast.expr) -> Iterator[str]:
    """The fixed pieces of a text: what stands between its placeholders."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value
    elif isinstance(expression, ast.JoinedStr):
        yield from (v.value for v in expression.values if isinstance(v, ast.Constant) and isinstance(v.value, str))


def phrases(pieces: list[str]) -> list[str]:
    """Runs of words between punctuation, longest first."""
    found = [part.strip() for piece in pieces for part in re.split(r"[;:,.()'\[\]]", squeezed(piece))]
    return sorted((p for p in found if len(p) >= MIN_LENGTH), key=len, reverse=True)


def places() -> list[tuple[str, list[str]]]:
    """Place and telling phrases of every message."""
    return [
        (f"{path.relative_to(ROOT)}:{line}", found)
        for path in sources()
        for line, pieces in messages(ast.parse(path.read_text()))
        if (found := phrases(pieces))
    ]


def is_tested(told: list[str]) -> bool:
    return any(phrase in test_texts() for phrase in told)


@pytest.mark.parametrize(("place", "told"), [pytest.param(*p, id=p[0]) for p in places() if p[1][0] not in UNTESTED])
def test_the_text_is_tested(place: str, told: list[str]) -> None:
    assert is_tested(told), f"no test holds a phrase of {place}: {told}"


def test_the_list_of_the_untested_holds_nothing_else() -> None:
    known = {told[0]: told for _, told in places()}
    assert known.keys() >= UNTESTED, f"no longer raised: {sorted(UNTESTED - known.keys())}"
    assert not [phrase for phrase in UNTESTED if is_tested(known[phrase])]


def test_placeholders_are_filled_in() -> None:
    """A text with braces that is no f-string would print its placeholder."""
    for path in sources():
        for found in ast.walk(ast.parse(path.read_text())):
            if isinstance(found, ast.Raise) and isinstance(found.exc, ast.Call):
                for argument in found.exc.args:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        assert not re.search(r"\{\w+\}", argument.value), f"{path.name}:{found.lineno}"
