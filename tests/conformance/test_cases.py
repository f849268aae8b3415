"""Small models that a converter has to get right, each with what must hold (tests/cases)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from tests.conformance.examine import examine, narrow_nodes

CASES = Path(__file__).parents[1] / "cases"
HIDDEN = frozenset(
    ("InstanceNormalization", "LpNormalization", "ReduceL2", "ReduceLogSumExp", "SkipSimplifiedLayerNormalization")
)
"""Operators whose intermediates are larger than their results; not every device computes them wide."""


@cache
def expected(name: str) -> dict[str, Any]:
    """What must hold for a case."""
    return dict(json.loads((CASES / name / "case.json").read_text()))


NAMES = sorted(p.name for p in CASES.iterdir())
RUNS = [(name, to) for name in NAMES for to in expected(name)["to"]]


def batches(name: str, model: ModelProto) -> list[dict[str, Any]]:
    """The case's batches; a sequence is stored as an array whose first axis runs over its elements."""
    sequences = {v.name for v in model.graph.input if v.type.HasField("sequence_type")}
    found = []
    for path in sorted((CASES / name).glob("batch*.npz")):
        with np.load(path) as arrays:
            found.append({k: list(a) if k in sequences else a for k, a in arrays.items()})
    return found


@pytest.mark.parametrize(("name", "to"), RUNS, ids=[f"{name}-{to}" for name, to in RUNS])
def test_what_must_hold(name: str, to: str) -> None:
    must = expected(name)
    model = onnx.load(CASES / name / "model.onnx")
    found = examine(model, batches(name, model), to)
    assert not found.problems, "\n".join([must["must"], *found.problems])
    assert found.error <= must["max_rel_error"][to], must["must"]
    assert found.report.verdict.status == "pass" or must["may_fail_verdict"], found.report.verdict.reasons
    least = must["min_narrow_nodes"]
    narrow = narrow_nodes(found.made)
    assert len(narrow) >= (least[to] if isinstance(least, dict) else least), must["must"]
    if "inner" in must and to == "fp16":
        assert not HIDDEN & set(narrow)


def test_how_many() -> None:
    kinds = [expected(name)["kind"] for name in NAMES]
    assert (kinds.count("structural"), kinds.count("numeric")) == (29, 15)
