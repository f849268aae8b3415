from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest

from converter.policy.document import document
from converter.policy.table import DEFAULT_WIDE, TABLE
from converter.types import HiddenRange, OpClass, OpPolicy

COMMITTED = Path(__file__).parent.parent.parent / "docs" / "policy-table.md"


def test_the_committed_document_is_fresh() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == document(), (
        "run: python -m converter.policy.document > docs/policy-table.md"
    )


def test_the_module_writes_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module is already imported
        runpy.run_module("converter.policy.document", run_name="__main__")
    assert capsys.readouterr().out == document()


def test_one_line_per_row_and_default() -> None:
    lines = [line for line in document().splitlines() if line.startswith("| `")]
    assert len(lines) == len(TABLE) + len(DEFAULT_WIDE)


def test_a_row_is_written_in_full() -> None:
    row = OpPolicy(
        "Norm",
        OpClass.FOLLOW,
        "Squares |x| before it sums.",
        "a test",
        domain="my.ops",
        since=1,
        until=3,
        keep_wide=("mean", "var"),
        nonzero=("var",),
        hidden_range=HiddenRange.SQUARE,
        narrow_vars=("T",),
    )
    assert (
        "| `my.ops::Norm` | 1–3 | follow | wide | wide: `mean`, `var`; non-zero: `var` | T | absmax^2 |  "
        r"| Squares \|x\| before it sums. | a test |"
    ) in document([row]).splitlines()
