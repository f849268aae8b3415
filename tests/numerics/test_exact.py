"""Comparing without a tolerance, whatever the element type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from converter.numerics.exact import differing, is_measured


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float32, True), ("<f4", True), (np.float64, True), (np.float16, True), (ml_dtypes.bfloat16, False),
     (ml_dtypes.float8_e4m3fn, False), (np.int64, False), (np.bool_, False), (object, False)],
)  # fmt: skip
def test_what_error_figures_speak_of(dtype: Any, expected: bool) -> None:
    assert is_measured(np.zeros(2, dtype)) is expected
    from_bytes = np.frombuffer(bytes(8), "<f4")  # a dtype that names its byte order, as tensors from a file have
    assert is_measured(from_bytes)


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        (np.array([1, 2, 3]), np.array([1, 0, 3]), 1),
        (np.array([np.nan, 1.0, np.inf]), np.array([np.nan, 2.0, np.inf]), 1),
        (np.array([0.0]), np.array([-0.0]), 0),
        (np.array([1, 2], ml_dtypes.float8_e5m2), np.array([1, 4], ml_dtypes.float8_e5m2), 1),
        (np.array([np.nan], ml_dtypes.float8_e5m2), np.array([np.nan], ml_dtypes.float8_e5m2), 0),
        (np.array([1, -2], ml_dtypes.int4), np.array([1, -3], ml_dtypes.int4), 1),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), 1),
        (np.array([True, False]), np.array([True, True]), 1),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0),
        (np.array(5), np.array(6), 1),
    ],
    ids=["int", "nan", "zero", "float8", "float8 nan", "int4", "string", "bool", "empty", "rank 0"],
)
def test_differing_elements(a: Any, b: Any, count: int) -> None:
    assert differing(a, b) == count
