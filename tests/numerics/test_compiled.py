"""The compiled pass beside NumPy's, element by element of what it finds."""

from __future__ import annotations

import ctypes
import importlib
import math
from pathlib import Path

import numpy as np
import pytest

from converter.formats import BF16, FP16, FloatFormat
from converter.numerics import compiled
from converter.numerics.compiled import error_sums

needs_kernel = pytest.mark.skipif(compiled._KERNEL is None, reason="no compiler was there at installation")
# Blocks of 1,024 in 16 lanes: 64 additions in a row, each within half an ULP (6e-8).
near = 64 * 2.0**-24


def pair(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = (rng.standard_normal(size) * 10.0 ** rng.integers(-3, 4, size)).astype(np.float32)
    return a, a.astype(np.float16).astype(np.float32)


@needs_kernel
class TestSums:
    @pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1023, 1024, 1025, 5000, 70_001])
    @pytest.mark.parametrize("fmt", [None, FP16, BF16], ids=str)
    def test_as_numpy_has_it(self, size: int, fmt: FloatFormat | None) -> None:
        a, b = pair(size)
        found = error_sums(a, b, fmt)
        assert found is not None
        wide_a, wide_b, d = a.astype(np.float64), b.astype(np.float64), a - b
        assert found.a_sq == pytest.approx(float(wide_a @ wide_a), rel=near)
        assert found.b_sq == pytest.approx(float(wide_b @ wide_b), rel=near)
        assert found.d_sq == pytest.approx(float(d.astype(np.float64) @ d.astype(np.float64)), rel=near)
        assert found.absmax == np.abs(a).max(initial=0)
        assert found.largest_value == np.abs(b).max(initial=0)
        assert found.largest == np.abs(d).max(initial=0)

    def test_saturated_and_flushed(self) -> None:
        a = np.tile(np.array([1e-9, 0, 70_000, -70_000, 65_504, 3], np.float32), 1000)
        b = np.tile(np.array([0, 0, 65_504, -65_504, 65_504, 0], np.float32), 1000)
        found = error_sums(a, b, FP16)
        assert found is not None
        assert (found.flushed, found.saturated) == (2000, 2000)
        free = error_sums(a, b, None)
        assert free is not None
        assert free.saturated == 0

    @pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 3e38])
    @pytest.mark.parametrize("where", [0, 999, 2047])
    def test_what_is_not_finite_shows(self, odd: float, where: int) -> None:
        a, b = pair(2048)
        a[where] = odd
        found = error_sums(a, b, FP16)
        assert found is not None
        assert not math.isfinite(found.a_sq + found.b_sq + found.d_sq)

    def test_arrays_it_cannot_take(self) -> None:
        a, b = pair(4096)
        assert error_sums(a[::2], b[::2], None) is None
        crooked = np.frombuffer(bytearray(4 * 8 + 1), np.uint8)[1:].view(np.float32)
        assert error_sums(crooked, a[:8], None) is None


@needs_kernel
def test_it_is_no_module() -> None:
    with pytest.raises(ImportError, match=r"is no module: converter\.numerics\.compiled calls it"):
        importlib.import_module("converter.numerics._sums")


def test_without_the_file_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    assert compiled.load() is None


def test_a_file_of_another_machine_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_sums.so").write_bytes(b"no library")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([tmp_path / "_sums.so"] if "so" in pattern else []))
    with pytest.raises(OSError, match=r"_sums\.so"):
        ctypes.CDLL(str(tmp_path / "_sums.so"))
    assert compiled.load() is None
