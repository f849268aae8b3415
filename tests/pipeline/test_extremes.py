"""Batches that hold everything a float can be: nothing crashes, and every report is one that the views can read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter import convert
from converter.report import view
from converter.report.json_view import read_report, to_json
from tests.models.tiny import TINY, Tiny

SPECIAL = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 65504, 65520, 1e-45, 1e-8, 6e-5, 2049, 1.0])


def mixed_in(value: Any, share: float, rng: np.random.Generator) -> Any:
    """A value with special numbers at a share of its places."""
    if isinstance(value, list):
        return [mixed_in(element, share, rng) for element in value]
    array = np.asarray(value)
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore", under="ignore"):
        special = rng.choice(SPECIAL, array.shape).astype(array.dtype)
    return np.where(rng.random(array.shape) < share, special, array).astype(array.dtype)


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
@pytest.mark.parametrize(("to", "share"), [("fp16", 0.2), ("bf16", 1.0)])
def test_a_verdict_and_a_report(given: Tiny, to: str, share: float, rng: np.random.Generator) -> None:
    feeds = given.feeds(rng)
    special = {name: mixed_in(value, share, rng) for name, value in feeds.items()}
    done = convert(given.model(), [special, feeds], to=to)
    assert done.report.verdict.status in ("pass", "fail")
    assert done.model is not None
    onnx.checker.check_model(ir.to_proto(done.model), full_check=True)
    report = read_report(to_json(done.report))
    for name in ("html", "csv", "junit", "markdown"):
        assert view(report, name)
