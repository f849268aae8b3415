"""``make demo``: convert a real public model, show the layer table, and say where the reports lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.real.models import MODELS

OUT = Path(".demo")


def main() -> int:
    """Run the product's own command line on magika, a file-type classifier that naive FP16 gets wrong."""
    model = next(m for m in MODELS if m.name == "magika")
    if model.file is None:
        print("the package magika is not installed; run `make demo`", file=sys.stderr)
        return 2
    OUT.mkdir(exist_ok=True)
    batch = OUT / "documents.npz"
    np.savez(batch, **model.batches(model.file)[0])
    command = [
        "convert", str(model.file), "--samples", str(batch), "--to", "fp16", "--output", str(OUT / "magika.fp16.onnx"),
        "--report", str(OUT / "report.json"), "--html", str(OUT / "report.html"),
    ]  # fmt: skip
    print("$ narrowcast " + " ".join(command), flush=True)
    status = subprocess.run([sys.executable, "-m", "api.cli", *command], check=False).returncode
    if status == 0:
        print(f"\nThe HTML report lies at {(OUT / 'report.html').resolve()}")
    return status


if __name__ == "__main__":
    sys.exit(main())
