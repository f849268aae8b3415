"""Throughput of rounding, error sums and range sums beside plain whole-array NumPy.

Run ``python -m benchmarks.metrics``.  Figures are GB of float32 input (of one array) per second on one thread,
best of several runs, and microseconds per call for an array of 100 elements.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converter.formats import BF16, FP16, TF32
from converter.numerics.error_sums import ErrorSums, relative_l2
from converter.numerics.full_metrics import full_figures
from converter.numerics.range_sums import RangeSums
from converter.numerics.rounding import round_to, round_wide

ELEMENTS = 4_000_000
Array = NDArray[Any]


def plain_metrics(reference: Array, value: Array) -> tuple[float, float, float]:
    a, b = reference.astype(np.float64), value.astype(np.float64)
    norm = np.sqrt((a * a).sum())
    cosine = (a * b).sum() / norm / np.sqrt((b * b).sum())
    return float(np.sqrt(((a - b) ** 2).sum()) / norm), float(np.abs(a - b).max()), float(cosine)


def plain_range(x: Array) -> tuple[float, ...]:
    wide = x.astype(np.float64)
    finite = np.isfinite(wide)
    magnitudes = np.abs(wide[finite & (wide != 0)])
    exponents = np.bincount(np.frexp(magnitudes)[1] + 200)
    return float(wide.min()), float(wide.max()), float(magnitudes.min()), float(exponents[0])


def core(reference: Array, value: Array) -> ErrorSums:
    sums = ErrorSums()
    sums.add(reference, value, FP16)
    return sums


def observed(x: Array) -> RangeSums:
    sums = RangeSums()
    sums.add(x)
    return sums


def seconds(call: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    x = np.random.default_rng(0).standard_normal(ELEMENTS, np.float32)
    sparse, narrow, small = np.maximum(x, 0), round_to(x, FP16), x[:100].copy()
    small_narrow = round_to(small, FP16)
    figures = core(x, narrow).figures()
    shaped, shaped_narrow = x.reshape(-1, 1000), narrow.reshape(-1, 1000)
    cases: list[tuple[str, Callable[[], object], Callable[[], object] | None]] = [
        ("round_to fp16", lambda: round_to(x, FP16), lambda: round_to(small, FP16)),
        ("round_to bf16", lambda: round_to(x, BF16), lambda: round_to(small, BF16)),
        ("round_to tf32", lambda: round_to(x, TF32), lambda: round_to(small, TF32)),
        ("round_wide fp16", lambda: round_wide(x, FP16), lambda: round_wide(small, FP16)),
        ("numpy astype(float16) and back", lambda: x.astype(np.float16).astype(np.float32), None),
        ("ErrorSums", lambda: core(x, narrow), lambda: core(small, small_narrow)),
        ("ErrorSums, half zeros", lambda: core(sparse, sparse), None),
        ("relative_l2", lambda: relative_l2(x, narrow), lambda: relative_l2(small, small_narrow)),
        ("plain numpy metrics", lambda: plain_metrics(x, narrow), None),
        ("full_figures, rows of 1000", lambda: full_figures(figures, shaped, shaped_narrow, FP16), None),
        ("RangeSums", lambda: observed(x), lambda: observed(small)),
        ("RangeSums, half zeros", lambda: observed(sparse), None),
        ("RangeSums, integers", lambda: observed(np.rint(x)), None),
        ("plain numpy range", lambda: plain_range(x), None),
    ]
    for label, call, short in cases:
        rate = x.nbytes / seconds(call, 5) / 1e9
        overhead = f"{1e6 * seconds(short, 300):6.1f} us" if short else ""
        print(f"{label:32} {rate:6.2f} GB/s {overhead}")


if __name__ == "__main__":
    main()
