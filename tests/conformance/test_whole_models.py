"""The whole models onnx ships for its backend tests, which nobody here wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnx.numpy_helper
import onnx.version_converter
import pytest
from onnx import ModelProto, SequenceProto, TensorProto

from converter.errors import InputError
from tests.conformance.emulation import Runnable
from tests.conformance.examine import Examined, examine

DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = ("simple", "light", "pytorch-converted", "pytorch-operator")
RAISED_TO = 13
"""Models below opset 7 are raised first, as narrowcast's refusal says."""
FORMATS = ("fp16", "bf16")


@dataclass(frozen=True, slots=True)
class Whole:
    """A model of onnx's and where its first batch lies, if it has one."""

    kind: str
    name: str
    path: Path
    data: Path | None


@cache
def wholes() -> tuple[Whole, ...]:
    """Every model of the installed onnx, by kind and name."""
    found = []
    for kind in KINDS:
        folder = DATA / kind
        found += [Whole(kind, path.stem, path, None) for path in sorted(folder.glob("*.onnx"))]
        for path in sorted(folder.glob("*/model.onnx")):
            data = path.parent / "test_data_set_0"
            found.append(Whole(kind, path.parent.name, path, data if data.is_dir() else None))
    return tuple(found)


def prepared(whole: Whole) -> tuple[ModelProto, dict[str, Any]]:
    """The model, at an opset that narrowcast takes, and a batch."""
    model = onnx.load(whole.path)
    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < 7:
        model = onnx.version_converter.convert_version(model, RAISED_TO)
    return model, batch(model, whole.data)


def batch(model: ModelProto, data: Path | None) -> dict[str, Any]:
    """The inputs onnx ships; for the networks it ships none for, an image of noise."""
    held = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in held]
    if data is None:
        rng = np.random.default_rng(0)
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inputs}
        return {name: rng.uniform(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    return {v.name: read(v.type, data / f"input_{k}.pb") for k, v in enumerate(model.graph.input) if v in inputs}


def read(kind: onnx.TypeProto, path: Path) -> Any:
    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(SequenceProto.FromString(content))
    return onnx.numpy_helper.to_array(TensorProto.FromString(content))


def outcome(whole: Whole, to: str) -> Examined | str:
    """The conversion, or why there is none."""
    try:
        model, feeds = prepared(whole)
        Runnable(model).run(feeds)
    except Exception as problem:
        return f"not run: {type(problem).__name__}: {' '.join(str(problem).split())[:120]}"
    try:
        return examine(model, feeds, to)
    except InputError as refusal:
        return f"refused: {refusal}"


@pytest.mark.suite
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("whole", wholes(), ids=lambda w: f"{w.kind}-{w.name}")
def test_it_converts(whole: Whole, to: str) -> None:
    found = outcome(whole, to)
    if isinstance(found, str):
        assert whole.name in NOT_RUN, found
        return
    assert NOT_RUN.get(whole.name) in (None, _LOCALE), "it runs now: take it off the list"
    assert not found.problems, "\n".join(found.problems)
    assert found.report.verdict.status == "pass", found.report.verdict.reasons


_GRADIENT = "ONNX Runtime for inference has no Gradient"
_LOCALE = "ONNX Runtime's StringNormalizer wants the locale en_US.UTF-8, which may not be installed"
_SLOPE = "onnx's version converter leaves PRelu's slope in a shape that opset 7 does not broadcast"
NOT_RUN: Mapping[str, str] = {
    "test_gradient_of_add": _GRADIENT,
    "test_gradient_of_add_and_mul": _GRADIENT,
    "test_strnorm_model_monday_casesensintive_lower": _LOCALE,
    "test_strnorm_model_monday_casesensintive_upper": _LOCALE,
    "test_strnorm_model_monday_empty_output": _LOCALE,
    "test_strnorm_model_monday_insensintive_upper_twodim": _LOCALE,
    "test_PReLU_1d_multiparam": _SLOPE,
    "test_PReLU_2d_multiparam": _SLOPE,
    "test_PReLU_3d_multiparam": _SLOPE,
}
"""Models that ONNX Runtime does not run in FP32, or that onnx cannot raise to a newer opset, and why."""


def test_how_many() -> None:
    counts = {"simple": 23, "light": 9, "pytorch-converted": 82, "pytorch-operator": 35}
    assert Counter(w.kind for w in wholes()) == counts
