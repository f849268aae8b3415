"""Runs one case: in FP32, emulated in a narrow format, and in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from converter.formats import FloatFormat

from .op_inputs import DOUBLE, FLOAT, Case, retyped

Array = NDArray[Any]
Feeds = Mapping[str, Array]


def round_to(x: Array, fmt: FloatFormat) -> Array:
    """Round FP32 to the nearest number of a format, ties to even, and give it back as FP32."""
    with np.errstate(over="ignore"):
        return np.asarray(x.astype(fmt.dtype), np.float32)


def fp32_kernel(case: Case) -> Callable[[Feeds], list[Array]]:
    """The case in ONNX Runtime, without optimisation and on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: [np.asarray(made) for made in session.run(None, dict(feeds))]


def float64_reference(case: Case) -> Callable[[Feeds], list[Array]]:
    """The case in float64: ONNX's reference implementation, or the case's own for contributed operators."""
    written = case.reference
    if written is not None:
        return lambda feeds: [written(*_widened(feeds).values())]
    evaluator = ReferenceEvaluator(retyped(case.model, FLOAT, DOUBLE))

    def run(feeds: Feeds) -> list[Array]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(made) for made in evaluator.run(None, _widened(feeds))]

    return run


def _widened(feeds: Feeds) -> dict[str, Array]:
    return {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}


def rounded_feeds(case: Case, fmt: FloatFormat) -> dict[str, Array]:
    narrow = case.narrow_inputs()
    return {name: round_to(x, fmt) if name in narrow else x for name, x in case.feeds.items()}


def rounded_outputs(case: Case, made: list[Array], fmt: FloatFormat) -> list[Array]:
    """Round the narrow FP32 outputs; others stay as they are."""
    pairs = zip(made, case.narrow_outputs(), strict=True)
    return [round_to(x, fmt) if narrow and x.dtype == np.float32 else x for x, narrow in pairs]
