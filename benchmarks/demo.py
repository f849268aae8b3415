"""``make demo``: start the service, convert a real public model over REST, show its worst layers, stop everything."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from tests.real.models import MODELS

OUT = Path(".demo")
NARROWCAST = [sys.executable, "-m", "api.cli"]
READY = "narrowcast is ready at "
LAYERS = 12
NAME_WIDTH = 46


def main() -> int:
    """Serve, submit magika (a file-type classifier that naive FP16 gets wrong), read layers, stop."""
    model = next(m for m in MODELS if m.name == "magika")
    if model.file is None:
        print("the package magika is not installed; run `make demo`", file=sys.stderr)
        return 2
    OUT.mkdir(exist_ok=True)
    batch = OUT / "documents.npz"
    np.savez(batch, **model.batches(model.file)[0])
    report = OUT / "report.json"
    with serving() as url:
        command = [
            "submit", str(model.file), "--samples", str(batch), "--to", "fp16", "--output",
            str(OUT / "magika.fp16.onnx"), "--report", str(report), "--html", str(OUT / "report.html"),
        ]  # fmt: skip
        print("\n$ narrowcast " + " ".join(command), flush=True)
        status = subprocess.run([*NARROWCAST, *command], check=False, env={**os.environ, "NARROWCAST_URL": url})
        if status.returncode == 0:
            show_layers(url)
    if status.returncode == 0:
        print(f"\nThe HTML report lies at {(OUT / 'report.html').resolve()}")
    return status.returncode


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a service of our own on a free port; Ctrl-C ends it as it would a user's."""
    command = ["serve", "--port", "0", "--data", str(OUT / "service")]
    print("$ narrowcast " + " ".join(command), flush=True)
    with (OUT / "serve.log").open("w") as log:
        running = subprocess.Popen([*NARROWCAST, *command], stdout=subprocess.PIPE, stderr=log, text=True)
    assert running.stdout is not None
    try:
        line = next((one for one in running.stdout if READY in one), "")
        if not line:
            raise SystemExit(f"the service did not start; see {OUT / 'serve.log'}")
        print(line.strip(), flush=True)
        yield line.split(READY)[1].split()[0]
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(30)


def show_layers(url: str) -> None:
    """The worst layers of the newest job, as the API pages them."""
    newest = _get(f"{url}/v1/jobs?page_size=1")["items"][0]
    query = f"/v1/jobs/{newest['id']}/layers?sort=-rel_l2_error&page_size={LAYERS}"
    print(f"\n$ curl '{url}{query}'")
    table = Table(title=f"the {LAYERS} layers with the largest errors", title_justify="left", box=None)
    for name in ("format", "rel. L2", "expected", "judged", "operator", "layer"):
        table.add_column(name, no_wrap=True)
    for layer in _get(url + query)["items"]:
        errors = [f"{layer[name]:.1e}" if layer[name] else "" for name in ("rel_l2_error", "expected_rel_l2")]
        name = str(layer["value"])
        tail = name if len(name) <= NAME_WIDTH else "…" + name[1 - NAME_WIDTH :]
        table.add_row(str(layer["format"]), *errors, str(layer["status"]), str(layer["op_type"]), tail)
    Console(width=100).print(table)


def _get(address: str) -> dict[str, list[dict[str, object]]]:
    with urllib.request.urlopen(address) as answer:
        return dict(json.load(answer))


if __name__ == "__main__":
    sys.exit(main())
