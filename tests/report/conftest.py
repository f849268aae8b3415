"""Example reports as the views get them: written and read back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converter.report.json_view import read_report, to_json
from tests.report import examples

GOLDEN = Path(__file__).parents[1] / "golden" / "report"


@pytest.fixture(scope="session")
def passing() -> dict[str, Any]:
    return read_report(to_json(examples.passing()))


@pytest.fixture(scope="session")
def failing() -> dict[str, Any]:
    return read_report(to_json(examples.failing()))


@pytest.fixture(scope="session")
def hostile() -> dict[str, Any]:
    return read_report(to_json(examples.hostile()))


@pytest.fixture(scope="session")
def empty() -> dict[str, Any]:
    return read_report(to_json(examples.empty()))


@pytest.fixture(scope="session")
def large() -> dict[str, Any]:
    return read_report(to_json(examples.large()))


@pytest.fixture
def golden() -> Callable[[str, bytes], None]:
    """Compares with a file in tests/golden/report; NARROWCAST_REGENERATE=1 writes it instead."""

    def compare(name: str, content: bytes) -> None:
        path = GOLDEN / name
        if os.environ.get("NARROWCAST_REGENERATE"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        assert content == path.read_bytes(), f"{path.name} differs; NARROWCAST_REGENERATE=1 rewrites it for review"

    return compare
