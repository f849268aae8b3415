"""Every trap in every scope: drawn before and after, and under all checks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from tests.conformance.examine import Examined, examine, narrow_nodes
from tests.conformance.traps import SCOPES, TRAPS, Trap, text

GOLDEN = Path(__file__).parents[1] / "golden" / "traps"


def batch(made: ModelProto) -> dict[str, Any]:
    """Halves around zero: exact in FP16 and BF16, so that wide and narrow readers see the same numbers."""
    rng = np.random.default_rng(7)
    feeds: dict[str, Any] = {}
    for value in made.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        is_float = value.type.tensor_type.elem_type == TensorProto.FLOAT
        feeds[value.name] = (rng.integers(-8, 9, shape) / 2).astype(np.float32) if is_float else np.array(True)
    return feeds


def converted(trap: Trap, scope: str, to: str) -> Examined:
    made = trap.placed(scope)
    return examine(made, batch(made), to)


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: t.name)
def test_the_result_is_valid_and_true(trap: Trap, scope: str, to: str) -> None:
    found = converted(trap, scope, to)
    assert not found.problems, "\n".join([*found.problems, found.text()])
    assert found.report.verdict.status == "pass", found.report.verdict.reasons
    assert trap.narrow <= set(narrow_nodes(found.made)), found.text()


@pytest.mark.parametrize("trap", TRAPS, ids=lambda t: t.name)
def test_drawn(trap: Trap) -> None:
    path = GOLDEN / f"{trap.name}.txt"
    drawn = "".join(
        f"{title}\n{text(graph)}\n"
        for title, graph in (
            ("before", trap.placed("main")),
            ("after, FP16", converted(trap, "main", "fp16").made),
            ("after, FP16, in the branches of an If", converted(trap, "if", "fp16").made),
        )
    )
    if os.environ.get("NARROWCAST_REGENERATE"):
        path.write_text(drawn)
    assert path.read_text() == drawn, f"{path.name} is not what comes out; regenerate it and review the diff"


def test_every_drawing_belongs_to_a_trap() -> None:
    assert {p.stem for p in GOLDEN.iterdir()} == {t.name for t in TRAPS}
