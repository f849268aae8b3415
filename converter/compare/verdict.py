"""Judge: the comparison under the tolerance."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from converter.types import OutputComparison, Verdict, VerdictReason


def judge(outputs: Sequence[OutputComparison], problems: Iterable[VerdictReason] = ()) -> Verdict:
    """``pass`` when every output keeps every limit and nothing else went wrong."""
    reasons = [*problems, *(reason for output in outputs for reason in broken_limits(output))]
    return Verdict("fail" if reasons else "pass", tuple(reasons))


def broken_limits(output: OutputComparison) -> Iterator[VerdictReason]:
    """Every limit an output breaks."""
    name = output.value
    if output.mismatches:
        text = f"output '{name}': {output.mismatches} elements (or shapes) that are no floats differ from FP32"
        yield VerdictReason("mismatches", float(output.mismatches), 0.0, name, message=text)
    figures, allowed = output.figures, output.allowed
    if figures is None:
        return
    if figures.misplaced_nonfinite:
        count = figures.misplaced_nonfinite
        text = f"output '{name}': {count} NaN or infinite elements where FP32 has none, or the other way round"
        yield VerdictReason("misplaced_nonfinite", float(count), 0.0, name, message=text)
    relative = figures.rel_l2_error
    if allowed.max_rel_l2 is not None and not (relative is not None and relative <= allowed.max_rel_l2):
        shown = "undefined (FP32 is all zeros)" if relative is None else f"{relative:.3g}"
        text = f"output '{name}': relative L2 error {shown}, allowed {allowed.max_rel_l2:.3g}"
        yield VerdictReason("max_rel_l2", relative, allowed.max_rel_l2, name, message=text)
    sqnr = math.inf if figures.equal else figures.sqnr_db
    if allowed.min_sqnr_db is not None and sqnr is not None and sqnr < allowed.min_sqnr_db:
        text = f"output '{name}': SQNR {sqnr:.1f} dB, at least {allowed.min_sqnr_db:.1f} dB is asked for"
        yield VerdictReason("min_sqnr_db", sqnr, allowed.min_sqnr_db, name, message=text)
    if allowed.max_abs is not None and figures.max_abs_error > allowed.max_abs:
        text = f"output '{name}': largest absolute error {figures.max_abs_error:.3g}, allowed {allowed.max_abs:.3g}"
        yield VerdictReason("max_abs", figures.max_abs_error, allowed.max_abs, name, message=text)
    top1 = figures.top1_agreement
    if allowed.min_top1_agreement is not None and top1 is not None and top1 < allowed.min_top1_agreement:
        text = (
            f"output '{name}': the largest score agrees in {top1:.2%} of rows, {allowed.min_top1_agreement:.2%} asked"
        )
        yield VerdictReason("min_top1_agreement", top1, allowed.min_top1_agreement, name, message=text)
