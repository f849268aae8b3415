"""The table of problems knows every code of the engine: one it does not know reads as a bug of ours."""

from __future__ import annotations

import re
from pathlib import Path

import converter
from worker.problems import PROBLEMS

ENGINE = Path(converter.__file__).parent


def test_every_code_of_the_engine_has_a_row() -> None:
    codes = {
        code for file in ENGINE.rglob("*.py") for code in re.findall(r'^    code = "([A-Z_]+)"', file.read_text(), re.M)
    }
    assert "TRACE_MISMATCH" in codes
    assert codes <= set(PROBLEMS)
