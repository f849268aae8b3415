"""``make bench``: narrowcast and its peers on the same files, one after the other, in one table.

Each conversion is a process of its own; its time includes the start of the interpreter, its memory is the peak of the
largest process it started.  The machine, the date and every figure go into ``benchmarks/results.json``, the table
into ``benchmarks/RESULTS.md``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.make_model import deep, transformer
from tests.real.models import MODELS

ROOT = Path(__file__).resolve().parent.parent
PEERS = {"ORT float16 1.32": ("ort", ".venv-ort"), "onnxconverter-common 1.16": ("common", ".venv-occ"),
         "AutoCast 0.47": ("autocast", ".venv-modelopt")}  # fmt: skip
LIMIT_SECONDS = 900
MARKS = ("<!-- bench -->", "<!-- /bench -->")
REAL = ("magika", "silero-16k-sequence", "ocr-classifier", "ocr-detector", "ocr-recogniser", "basic-pitch")


@dataclass
class Row:
    """One tool on one model."""

    model: str
    tool: str
    seconds: float | None
    peak_mb: float | None
    cpu_seconds: float | None = None
    """Of all processes and cores: what other work on the machine disturbs least."""
    ratio: float | None = None
    """Processor time over narrowcast's for the same model; for weights, time over ``cat`` of them and a start."""
    checker: bool | None = None
    loads: bool | None = None
    rel_l2: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds, processor seconds of all its processes, peak memory in MB of the largest."""

    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_mb: float | None = None
    problem: str = ""


def timed(command: Sequence[str]) -> Cost:
    """Run a command and measure it, beginning with nothing left to write to the disk."""
    os.sync()
    watch = (
        "import json,resource,subprocess,sys,time\n"
        "start=time.perf_counter()\n"
        "done=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL,stderr=subprocess.PIPE)\n"
        "taken=time.perf_counter()-start\n"
        "used=resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "words=done.stderr.decode(errors='replace')[-300:]\n"
        "print(json.dumps([done.returncode,taken,used.ru_utime+used.ru_stime,used.ru_maxrss/1024,words]))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", watch, *command], capture_output=True, timeout=LIMIT_SECONDS, check=True, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return Cost(problem=f"not done after {LIMIT_SECONDS} s")
    status, taken, used, peak, words = json.loads(done.stdout.decode().splitlines()[-1])
    problem = f"exit {status}: {' '.join(words.split())[-160:]}" if status not in (0, 1) else ""
    return Cost(taken, used, peak, problem)


def ours(model: Path, output: Path, to: str, batches: Sequence[Path]) -> list[str]:
    samples = [part for batch in batches for part in ("--samples", str(batch))] or ["--no-validate"]
    return [
        sys.executable,
        "-m",
        "api.cli",
        "convert",
        str(model),
        "--to",
        to,
        "--output",
        str(output),
        "--quiet",
        *samples,
    ]


def peer(name: str, model: Path, output: Path, batches: Sequence[Path]) -> list[str] | None:
    kind, venv = PEERS[name]
    python = ROOT / venv / "bin" / "python"
    extra = [str(batches[0])] if batches and kind == "autocast" else []
    return (
        [str(python), str(ROOT / "benchmarks" / "peers.py"), kind, str(model), str(output), *extra]
        if python.exists()
        else None
    )


def measured(
    model: str,
    tool: str,
    command: Sequence[str],
    given: Path,
    output: Path,
    batches: Sequence[Path],
    judge: bool = True,
) -> Row:
    """Run a tool and judge its result; the output is deleted afterwards."""
    cost = timed(command)
    row = Row(model, tool, cost.seconds, cost.peak_mb, cost.cpu_seconds, problem=cost.problem)
    if output.exists() and judge and not cost.problem:
        judge_it = [sys.executable, "-m", "benchmarks.judge", str(given), str(output), *map(str, batches[:1])]
        done = subprocess.run(judge_it, capture_output=True, cwd=ROOT, check=False)
        if done.returncode == 0:
            found = json.loads(done.stdout.decode().splitlines()[-1])
            row.checker, row.loads, row.rel_l2 = found["checker"], found["loads"], found["rel_l2"]
            row.problem = found.get("problem", "")
        else:
            row.problem = "the judge died: " + done.stderr.decode(errors="replace")[-120:]
    for path in output.parent.glob(output.stem + "*"):
        path.unlink()
    return row


def large(folder: Path, gigabytes: float, with_peers: bool) -> Iterator[Row]:
    """A model with external data, page cache warm for everybody; ``cat`` of its weights beside it."""
    given, output = folder / "large.onnx", folder / "out.onnx"
    transformer(given, gigabytes, 18, 0, holes=False)
    name, data = f"transformer {gigabytes:g} GB", given.with_suffix(".data")
    subprocess.run(["cat", str(data)], stdout=subprocess.DEVNULL, check=True)
    cat = timed(["sh", "-c", f"cat {data} > {folder / 'copy'}"])
    (folder / "copy").unlink()
    base = Row(name, "cat weights > copy", cat.seconds, cat.peak_mb, cat.cpu_seconds)
    yield base
    start = timed([sys.executable, "-m", "api.cli", "formats"]).seconds or 0.0
    for to in ("fp16", "bf16"):
        row = measured(name, f"narrowcast {to}", ours(given, output, to, ()), given, output, (), judge=False)
        if row.seconds and base.seconds:
            row.ratio = row.seconds / (base.seconds + start)
        yield row
    for tool in PEERS if with_peers else ():
        command = peer(tool, given, output, ())
        if command and "AutoCast" not in tool:
            yield measured(name, tool, command, given, output, (), judge=False)
    for path in folder.glob("large*"):
        path.unlink()


def holes(folder: Path) -> Iterator[Row]:
    """20 GB of weights that are holes of a sparse file."""
    given, output = folder / "sparse.onnx", folder / "out.onnx"
    transformer(given, 20, 18, 0, holes=True)
    yield measured(
        "transformer 20 GB of holes", "narrowcast fp16", ours(given, output, "fp16", ()), given, output, (), judge=False
    )
    for path in folder.glob("sparse*"):
        path.unlink()


def chains(folder: Path, with_peers: bool) -> Iterator[Row]:
    """Deep graphs: linear or not."""
    for nodes in (2_000, 10_000, 20_000, 100_000):
        given, output = folder / f"deep{nodes}.onnx", folder / "out.onnx"
        deep(given, nodes, 18, 0)
        name = f"deep graph, {nodes:,} nodes"
        first = measured(
            name, "narrowcast fp16", ours(given, output, "fp16", ()), given, output, (), judge=nodes <= 2_000
        )
        yield first
        for tool in PEERS if with_peers and nodes <= 2_000 else ():
            command = peer(tool, given, output, ())
            if command:
                yield compared(measured(name, tool, command, given, output, ()), first)


def compared(row: Row, first: Row) -> Row:
    if row.cpu_seconds and first.cpu_seconds:
        row.ratio = row.cpu_seconds / first.cpu_seconds
    return row


def real(folder: Path, with_peers: bool) -> Iterator[Row]:
    """Public models with a batch: conversion with validation, true error under emulation."""
    for model in MODELS:
        if model.file is None or model.name not in REAL:
            continue
        batches = []
        for number, feeds in enumerate(model.batches(model.file)[:1]):
            batches.append(folder / f"batch{number}.npz")
            np.savez(batches[-1], **feeds)
        output = folder / "out.onnx"
        first = measured(
            model.name, "narrowcast fp16", ours(model.file, output, "fp16", batches), model.file, output, batches
        )
        yield first
        for tool in PEERS if with_peers else ():
            command = peer(tool, model.file, output, batches)
            if command:
                yield compared(measured(model.name, tool, command, model.file, output, batches), first)


def many(folder: Path) -> Iterator[Row]:
    """500 batches in the memory of one."""
    given, output = folder / "many.onnx", folder / "out.onnx"
    transformer(given, 0.05, 18, 0, holes=False)
    rng = np.random.default_rng(0)
    samples = folder / "batches"
    samples.mkdir()
    for number in range(500):
        np.savez(samples / f"{number:03}.npz", tokens=rng.integers(0, 1024, (1, 16)))
    for label, batches in (("1 batch", [samples / "000.npz"]), ("500 batches", [samples])):
        yield measured(
            f"transformer 0.05 GB, {label}",
            "narrowcast fp16",
            ours(given, output, "fp16", batches),
            given,
            output,
            (),
            judge=False,
        )


def shown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [
        "| model | tool | time | processor time | peak RSS | ratio | checker | loads | true error | problem |",
        "|---|---|--:|--:|--:|--:|---|---|--:|---|",
    ]
    for row in rows:
        figures = (
            (row.seconds, "{:.2f} s"), (row.cpu_seconds, "{:.2f} s"), (row.peak_mb, "{:,.0f} MB"), (row.ratio, "{:.2f}")
        )  # fmt: skip
        cells = [row.model, row.tool, *(_number(value, form) for value, form in figures)]
        cells += [_word(row.checker), _word(row.loads), _number(row.rel_l2, "{:.2g}")]
        cells.append(row.problem.replace("|", "/")[:110])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def short(rows: Sequence[Row]) -> str:
    """The table for the README: what is measured of everybody, without the words."""
    lines = ["| model | tool | time | peak RSS | valid | true error |", "|---|---|--:|--:|---|--:|"]
    for row in rows:
        valid = row.checker and row.loads if row.checker is not None else None
        cells = [row.model, row.tool, _number(row.seconds, "{:.1f} s"), _number(row.peak_mb, "{:,.0f} MB"),
                 _word(valid), _number(row.rel_l2, "{:.1e}")]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def put_into_readme(head: str, rows: Sequence[Row]) -> None:
    """Replace what stands between the marks."""
    path = ROOT / "README.md"
    before, _, rest = path.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    path.write_text(f"{before}{MARKS[0]}\n{head}\n{short(rows)}{MARKS[1]}{after}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _word(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "**no**"


def machine() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0] if names else platform.machine()
    return f"{os.cpu_count()} cores of {processor}, {memory:.0f} GiB, Linux {platform.release().partition('-')[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["large", "holes", "chains", "real", "many"])
    parser.add_argument("--gigabytes", type=float, default=5.36)
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--folder", type=Path, default=None, help="where the models go (needs four times their size)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="narrowcast-bench-", dir=given.folder))
    peers = not given.no_peers
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "large": lambda: large(folder, given.gigabytes, peers),
        "holes": lambda: holes(folder),
        "chains": lambda: chains(folder, peers),
        "real": lambda: real(folder, peers),
        "many": lambda: many(folder),
    }
    rows: list[Row] = []
    started = time.time()
    try:
        for part in given.parts:
            for row in parts[part]():
                rows.append(row)
                print(shown([row]).splitlines()[-1], flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        date = dt.datetime.fromtimestamp(started, dt.UTC).strftime("%Y-%m-%d")
        head = f"`make bench`, {date}, {machine()}. Load while it ran: {os.getloadavg()[0]:.1f}.\n"
        (ROOT / "benchmarks" / "RESULTS.md").write_text(f"# Benchmarks\n\n{head}\n{shown(rows)}")
        if set(given.parts) == set(parts):
            put_into_readme(head, rows)
        (ROOT / "benchmarks" / "results.json").write_text(
            json.dumps({"date": date, "machine": machine(), "rows": [asdict(r) for r in rows]}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
