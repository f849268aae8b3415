"""A child that speaks the engine's protocol and does what its model file says: a real process, no model.

The "model" is a JSON text such as ``{"steps": [["sleep", 2], ["crash", 11]]}``; without steps it succeeds at
once.  Steps: sleep s, crash signal, hang (ignores SIGTERM), fork (leaves a grandchild in the group), escape
(leaves one in a session of its own), eat bytes, fill bytes (writes a file), error code, exit status, verdict word,
crash-once path, sleep-once path s (only while the marker file is not there), progress stage done total, warn text,
layers n, node name, stderr text.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

STAGES = ("load", "observe", "decide", "rewrite", "compare", "judge", "build")
EXIT_STATUS = {"INVALID_INPUT": 2, "MODEL_PARSE_ERROR": 2, "INPUT_MISMATCH": 2, "INVALID_OPTION": 2}


def say(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def tie_to_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Run:
    def __init__(self, request: dict, folder: Path) -> None:
        self.request = request
        self.folder = folder
        self.verdict = "pass"
        self.layer_count = 3
        self.eaten: list[bytearray] = []

    def step(self, name: str, *values: object) -> None:
        getattr(self, "do_" + name.replace("-", "_"))(*values)

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_crash(self, number: int) -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    def do_crash_once(self, marker: str) -> None:
        if not Path(marker).exists():
            Path(marker).touch()
            self.do_crash(signal.SIGKILL)

    def do_sleep_once(self, marker: str, seconds: float) -> None:
        if not Path(marker).exists():
            Path(marker).touch()
            time.sleep(seconds)

    def do_hang(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)

    def do_fork(self) -> None:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)

    def do_escape(self, marker: str) -> None:
        if os.fork() == 0:
            os.setsid()
            Path(marker).write_text(str(os.getpid()))
            time.sleep(3600)
        while not (Path(marker).exists() and Path(marker).read_text()):
            time.sleep(0.01)

    def do_eat(self, size: int) -> None:
        while sum(map(len, self.eaten)) < size:
            self.eaten.append(bytearray(b"x" * (16 * 2**20)))
            time.sleep(0.02)

    def do_fill(self, size: int) -> None:
        with open(Path(self.request["output"]).parent / "filler", "wb") as file:
            for _ in range(size // 2**20):
                file.write(b"x" * 2**20)
            file.flush()
            os.fsync(file.fileno())
        (Path(self.request["output"]).parent / "filler").unlink()

    def do_error(self, code: str) -> None:
        say(event="error", exit_status=EXIT_STATUS.get(code, 3), code=code, message=f"told to fail with {code}")
        raise SystemExit(EXIT_STATUS.get(code, 3))

    def do_exit(self, status: int) -> None:
        raise SystemExit(status)

    def do_verdict(self, word: str) -> None:
        self.verdict = word

    def do_layers(self, count: int) -> None:
        self.layer_count = count

    def do_node(self, name: str) -> None:
        (self.folder / "breadcrumb").write_bytes(name.encode().ljust(4096, b"\0"))

    def do_progress(self, stage: str, done: int, total: int) -> None:
        say(event="progress", stage=stage, done=done, total=total)

    def do_warn(self, text: str) -> None:
        say(event="warning", message=text)

    def do_stderr(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def layer(template: dict, number: int) -> dict:
    return {
        **template, "value": f"value_{number}", "node": f"node_{number}", "op_type": "MatMul" if number % 2 else "Add",
        "rel_l2_error": number * 1e-4, "max_abs_error": number * 1e-3, "cosine_similarity": 1.0 - number * 1e-6,
        "sqnr_db": None if number == 0 else 80.0 - number * 0.001,
    }  # fmt: skip


def write_results(run: Run) -> None:
    request = run.request
    report = json.loads(Path(sys.argv[1]).read_bytes())
    report["verdict"] = {"status": run.verdict, "reasons": []}
    template = report["layers"][0]
    report["layers"] = [layer(template, number) for number in range(run.layer_count)]
    output = Path(request["output"])
    shutil.copyfile(request["model"], output)
    output.with_name(output.name + ".data").write_bytes(b"weights" * 100)
    Path(request["report"]).write_text(json.dumps(report))
    Path(request["html"]).write_text("<!doctype html><title>report</title>")
    Path(request["junit"]).write_text("<testsuites/>")
    say(
        event="result",
        exit_status=0 if run.verdict == "pass" else 1,
        verdict=run.verdict,
        files={
            "model": [request["output"], request["output"] + ".data"],
            "report": request["report"],
            "html": request["html"],
            "junit": request["junit"],
        },
        summary={"nodes": run.layer_count, "seen_options": request["options"], "seen_samples": request["samples"]},
    )


def main() -> int:
    tie_to_parent(int(sys.argv[-1]))
    folder = Path(sys.stdin.readline().rstrip("\n"))
    if not (folder / "request.json").is_file():
        return 0
    run = Run(json.loads((folder / "request.json").read_text()), folder)
    try:
        script = json.loads(Path(run.request["model"]).read_bytes())
    except ValueError:
        script = {}
    for stage in STAGES:
        say(event="progress", stage=stage, done=0, total=1)
        if stage == script.get("at", "compare"):
            for step in script.get("steps", []):
                run.step(*step)
        say(event="progress", stage=stage, done=1, total=1)
    try:
        write_results(run)
    except OSError as error:
        say(event="error", exit_status=3, code="ENVIRONMENT", message=str(error))
        return 3
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        say(event="error", exit_status=3, code="ENVIRONMENT", message=str(error))
        sys.exit(3)
