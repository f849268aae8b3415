"""Graph outputs against FP32: figures per batch, exact comparison of what is no float, statistics over batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from converter.formats import FP32, FloatFormat
from converter.numerics.error_sums import ErrorSums, worst
from converter.numerics.exact import differing, is_measured
from converter.numerics.full_metrics import combine_full, full_figures
from converter.types import ErrorFigures


@dataclass
class OutputRecord:
    """One output over all batches so far."""

    name: str
    fmt: FloatFormat | None
    figures: ErrorFigures | None = None
    errors: list[float] = field(default_factory=list)
    worst_batch: int = 0
    mismatches: int = 0
    shape: tuple[int, ...] = ()
    problem: str = ""

    def add(self, reference: Any, value: Any, batch: int) -> None:
        """Compare one batch's output."""
        if isinstance(reference, list):
            self._add_sequence(reference, value, batch)
        elif isinstance(reference, np.ndarray) and isinstance(value, np.ndarray):
            self._add_arrays([(reference, value)], batch)
        elif reference is not value:
            self.mismatches += 1

    def _add_sequence(self, reference: list[Any], value: Any, batch: int) -> None:
        if not isinstance(value, list) or len(value) != len(reference):
            got = len(value) if isinstance(value, list) else "no sequence"
            self._mismatch(f"a sequence of {len(reference)} elements became {got}")
            return
        self._add_arrays(list(zip(reference, value, strict=True)), batch)

    def _add_arrays(self, pairs: Sequence[tuple[Any, Any]], batch: int) -> None:
        sums, full = ErrorSums(), []
        floats = False
        for reference, value in pairs:
            self.shape = reference.shape
            if reference.shape != value.shape:
                self._mismatch(f"shape {list(reference.shape)} became {list(value.shape)}")
                return
            if is_measured(reference):
                floats = True
                sums.add(reference, value, self.fmt)
                full.append(full_figures(sums.figures(), reference, value, self.fmt or FP32))
            else:
                self.mismatches += differing(reference, value)
        if floats:
            self._keep(combine_full(sums.figures(), full), batch)

    def _keep(self, figures: ErrorFigures, batch: int) -> None:
        self.errors.append(math.inf if figures.rel_l2_error is None else figures.rel_l2_error)
        chosen = figures if self.figures is None else worst(self.figures, figures)
        if chosen is not self.figures:
            self.worst_batch = batch
        self.figures = chosen

    def _mismatch(self, problem: str) -> None:
        self.mismatches += 1
        self.problem = self.problem or problem
        self.errors.append(math.inf)


def compare_outputs(
    records: Mapping[str, OutputRecord], reference: Mapping[str, Any], mixed: Mapping[str, Any] | None, batch: int
) -> None:
    """Add one batch to every output's record; a mixed run that failed counts as infinitely wrong."""
    for name, record in records.items():
        if mixed is None:
            record.mismatches += 1
            record.errors.append(math.inf)
            record.problem = record.problem or "the mixed model could not be run to its end"
        else:
            record.add(reference[name], mixed[name], batch)


def mean_interval(errors: Sequence[float]) -> tuple[float | None, tuple[float, float] | None]:
    """Mean of the batches' relative errors with its 95 % interval (Student's t); None below two batches."""
    finite = [e for e in errors if math.isfinite(e)]
    if not finite:
        return None, None
    mean = sum(finite) / len(finite)
    if len(finite) < 2 or len(finite) != len(errors):
        return mean, None
    deviation = math.sqrt(sum((e - mean) ** 2 for e in finite) / (len(finite) - 1))
    half = _t_quantile(len(finite) - 1) * deviation / math.sqrt(len(finite))
    return mean, (max(0.0, mean - half), mean + half)


_T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
          12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000}  # fmt: skip
"""0.975 quantiles of Student's t by degrees of freedom; between entries the next smaller one counts (wider)."""


def _t_quantile(degrees: int) -> float:
    return _T_975[max(d for d in _T_975 if d <= degrees)]
