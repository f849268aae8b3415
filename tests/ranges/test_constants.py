"""Constants measured in pieces: what they hold does not depend on the pieces or on who reads them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from converter.numerics.range_sums import RangeSums
from converter.ranges import constants
from converter.ranges.constants import measure_constant, survey_constants
from tests.models.run import floats

ARRAYS = [
    floats([]),
    floats([0.0]),
    floats([1.0, -2.0, 0.0, 3e-9]),
    floats([np.nan, np.inf, -np.inf, 5.0]),
    np.random.default_rng(1).standard_normal((37, 53)).astype(np.float32),
]


@pytest.fixture(params=[2**19, 64])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(constants, "PIECE_BYTES", request.param)
    return int(request.param)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("array", ARRAYS, ids=["empty", "zero", "few", "special", "many"])
def test_the_range_is_the_arrays(array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
    sums = RangeSums()
    sums.add(array)
    assert measure_constant(ir.tensor(array)) == sums.result()


@pytest.mark.usefixtures("pieces")
def test_a_survey_of_many() -> None:
    found = survey_constants([ir.tensor(a) for a in ARRAYS])
    for array, seen in zip(ARRAYS, found, strict=True):
        finite = bool(np.isfinite(array).all())
        assert seen.finite == finite
        if finite:
            assert seen.absmax == float(np.max(np.abs(array), initial=0.0))
            expected = float(np.mean(np.square(array.astype(np.float64)))) if array.size else 0.0
            assert seen.mean_square == pytest.approx(expected, rel=1e-6)


def test_a_survey_of_nothing() -> None:
    assert survey_constants([]) == []
