"""What importing a part loads: the web process and the command line stay light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "onnx", "onnxruntime", "onnx_ir")
LIGHT = ("api.cli", "converter", "converter.types", "converter.errors", "converter.formats", "converter.isolation",
         "converter.report", "converter.cli", "converter.terminal")  # fmt: skip


def loaded(statement: str) -> set[str]:
    """Heavy packages in a fresh process after a statement."""
    script = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    assert loaded(f"import {module}") == set()


def test_the_engine_loads_no_torch() -> None:
    assert "torch" not in loaded("import converter; converter.convert, converter.inspect, converter.validate")


def test_names_of_the_package_are_exact() -> None:
    import converter

    assert converter.__all__ == sorted(converter.__all__)
    for name in converter.__all__:
        assert getattr(converter, name) is not None
    with pytest.raises(AttributeError, match=r"module 'converter' has no attribute 'nothing'"):
        converter.nothing  # noqa: B018
