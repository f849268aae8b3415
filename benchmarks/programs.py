"""PyTorch programs, measured: seconds to trace and to convert, errors, and what stays FP32 and why.

``python -m benchmarks.programs [NAME ...]`` prints a Markdown table over the models of ``tests/torch/models.py``.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import converter
from converter.types import Report
from tests.torch.checking import save_program, save_script
from tests.torch.models import CASES, package_file, voice

HEAD = "| model | from | trace s | convert s | FP16 rel. L2 | BF16 rel. L2 | FP32 in FP16 | FP32 in BF16 | mixed .pt2 |"
RULES_SHOWN = 4


def measured(path: Path, sample: Any, to: str, output: Path) -> tuple[Report, float]:
    started = time.perf_counter()
    done = converter.convert(path, sample, to=to, output=output)
    return done.report, time.perf_counter() - started


def worst(report: Report) -> str:
    errors = [o.figures.rel_l2_error or 0.0 for o in report.outputs if o.figures]
    return f"{max(errors, default=0.0):.1e} ({report.verdict.status})"


def kept(report: Report) -> str:
    """How many nodes stay FP32, and the rules that keep most of them."""
    rules = Counter(d.rule for d in report.decisions if d.format == "fp32")
    total = sum(rules.values())
    shown = ", ".join(f"{count} {rule}" for rule, count in rules.most_common(RULES_SHOWN))
    return f"{total} of {report.summary.float_nodes}" + (f": {shown}" if total else "")


def row(name: str, kind: str, path: Path, sample: Any, folder: Path) -> str:
    narrow, seconds = measured(path, sample, "fp16", folder / "fp16.pt2")
    wide, _ = measured(path, sample, "bf16", folder / "bf16.onnx")
    trace = narrow.timings["trace"]
    facts = narrow.program
    assert facts is not None
    assert facts.handed_back is not None
    handed = facts.handed_back
    back = f"{handed.narrow}/{handed.nodes} narrow" if handed.status == "written" else f"refused: {handed.reason[:60]}"
    cells = [name, kind, f"{trace:.1f}", f"{seconds - trace:.1f}", worst(narrow), worst(wide), kept(narrow), kept(wide)]
    return f"| {' | '.join([*cells, back])} |"


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    print(HEAD)
    print("|" + " --- |" * (HEAD.count("|") - 1))
    for case in CASES:
        if names and case.name not in names:
            continue
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            module, sample = case.build()
            path = save_program(folder / "model.pt2", module, sample)
            print(row(case.name, ".pt2", path, sample, folder), flush=True)
            if case.torchscript:
                path = save_script(folder / "model.pt", case.torchscript, module, sample)
                print(row(case.name, "TorchScript", path, sample, folder), flush=True)
    if not names or "silero" in names:
        with tempfile.TemporaryDirectory() as place:
            path = package_file("silero_vad", "data/silero_vad.jit")
            print(row("silero_vad.jit", "TorchScript", path, voice(), Path(place)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
