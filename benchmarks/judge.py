"""Judges a converted model: does ONNX's checker pass it, does it load, and what is its true error under emulation?

``python -m benchmarks.judge REFERENCE CANDIDATE [BATCH.npz]`` prints one JSON object.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import onnx
import onnxruntime as ort

ort.set_default_logger_severity(4)


def main() -> None:
    reference, candidate, *batch = sys.argv[1:]
    found: dict[str, Any] = {"checker": True, "loads": True, "rel_l2": None}
    try:
        onnx.checker.check_model(candidate, full_check=True)
    except Exception as error:
        found["checker"], found["problem"] = False, _short(error)
    try:
        ort.InferenceSession(candidate, providers=["CPUExecutionProvider"])
    except Exception as error:
        found["loads"], found["problem"] = False, _short(error)
    if batch:
        found["rel_l2"] = _error(reference, candidate, batch[0], found)
    print(json.dumps(found))


def _error(reference: str, candidate: str, batch: str, found: dict[str, Any]) -> float | None:
    """The worst output's relative L2 error in emulated narrow arithmetic; None when it cannot run."""
    from converter.validation import validate

    try:
        report = validate(reference, candidate, [batch])
    except Exception as error:
        found["problem"] = _short(error)
        return None
    errors = [o.figures.rel_l2_error for o in report.outputs if o.figures is not None]
    known = [math.inf if e is None else e for e in errors]
    worst = max(known, default=0.0)
    return worst if math.isfinite(worst) else None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


if __name__ == "__main__":
    main()
