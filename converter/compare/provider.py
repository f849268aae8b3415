"""The written model on a real provider, whole as it would be deployed, against FP32."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from converter.numerics.error_sums import ErrorSums, worst
from converter.runtime.providers import run_on
from converter.runtime.session import KernelFailure
from converter.types import ErrorFigures, OutputTolerance, ProviderOutput, Verdict, VerdictReason


@dataclass(frozen=True, slots=True)
class ProviderFigures:
    """What a provider made of the outputs, and the limits that broke there."""

    outputs: tuple[ProviderOutput, ...] = ()
    reasons: tuple[VerdictReason, ...] = ()


def measure_on_provider(
    model: bytes | str,
    provider: str,
    batches: Iterable[Mapping[str, Any]],
    references: Sequence[Mapping[str, Any]],
    limits: Mapping[str, OutputTolerance],
) -> tuple[ProviderFigures, float | None]:
    """Run every batch; figures of the float outputs, and the median latency of one inference in seconds."""
    try:
        run = run_on(model, provider, batches)
    except KernelFailure as error:
        text = f"the converted model does not run on provider '{provider}': {error}"
        return ProviderFigures(reasons=(VerdictReason("provider", None, None, message=text),)), None
    worst_of: dict[str, ErrorFigures] = {}
    for outputs, reference in zip(run.outputs, references, strict=True):
        for name, expected in reference.items():
            got = outputs.get(name)
            if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f" or not isinstance(got, np.ndarray):
                continue
            sums = ErrorSums()
            if got.shape == expected.shape:
                sums.add(expected, got.astype(np.float32))
                figures = sums.figures()
                worst_of[name] = worst(worst_of[name], figures) if name in worst_of else figures
    rows = tuple(ProviderOutput(n, provider, f.rel_l2_error, f.misplaced_nonfinite) for n, f in worst_of.items())
    return ProviderFigures(rows, tuple(_broken(rows, limits))), run.latency


def _broken(rows: Iterable[ProviderOutput], limits: Mapping[str, OutputTolerance]) -> Iterable[VerdictReason]:
    for row in rows:
        allowed = limits[row.value].max_rel_l2
        error = row.rel_l2_error
        if row.misplaced_nonfinite or (allowed is not None and (error is None or error > allowed)):
            shown = f"{error:.3g}" if error is not None else "undefined"
            text = (
                f"on provider '{row.provider}' output '{row.value}' has a relative L2 error of {shown} and "
                f"{row.misplaced_nonfinite} misplaced non-finite elements, allowed {allowed}"
            )
            yield VerdictReason("provider", error, allowed, row.value, message=text)


def judge_provider(verdict: Verdict, reasons: Sequence[VerdictReason]) -> Verdict:
    """The verdict with what broke on a real provider added."""
    return Verdict("fail", (*verdict.reasons, *reasons)) if reasons else verdict
