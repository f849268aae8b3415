"""What the client's commands print: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from api.client import Job

WORST_FIRST: Final = (3, 4, 5, 6, 2, 1, 0)
"""Exit statuses of many jobs: the first of these that occurs is the command's."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def worst(statuses: Sequence[int]) -> int:
    return min(statuses, key=WORST_FIRST.index, default=0)


def clean(text: object) -> str:
    """Text from a model or a service, harmless to a terminal."""
    return _CONTROL.sub("", str(text))


def say(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        print(clean(text), file=sys.stderr)


def print_json(value: Any) -> None:
    """The one object on stdout."""
    print(json.dumps(value, ensure_ascii=False))


class Progressing:
    """A progress bar per file or job on a terminal's stderr; nothing anywhere else."""

    def __init__(self, *, quiet: bool) -> None:
        console = Console(stderr=True)
        shown = not quiet and console.is_terminal
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._bytes = Progress(*columns, console=console, disable=not shown, transient=True)
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Progressing:
        self._bytes.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bytes.stop()

    def bytes(self, name: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bytes.add_task(clean(name), total=total)
        self._bytes.update(self._tasks[name], completed=done)

    def job(self, job: Job) -> None:
        text = f"{clean(job.name)}: {job.state} {job.stage}"
        if job.id not in self._tasks:
            self._tasks[job.id] = self._bytes.add_task(text, total=None)
        self._bytes.update(self._tasks[job.id], description=text, completed=job.done, total=job.total or None)


@dataclass(frozen=True, slots=True)
class Case:
    """A model that was to be converted: its job, if it came to that, and what went wrong outside of it."""

    name: str
    job: Job | None
    error: str = ""


def print_jobs(jobs: Sequence[Job]) -> None:
    print_cases([Case(job.name, job) for job in jobs])


def print_cases(cases: Sequence[Case]) -> None:
    """One table, on stdout; nothing for nothing."""
    if not cases:
        return
    table = Table(box=None)
    for name in ("job", "model", "state", "verdict", "seconds", "why"):
        table.add_column(name, no_wrap=name == "job")
    for case in cases:
        job = case.job
        if job is None:
            table.add_row("", clean(case.name), "", "", "", clean(case.error))
            continue
        seconds = "" if job.run_seconds is None else f"{job.run_seconds:.1f}"
        why = clean(case.error or job.reason)
        table.add_row(job.id, clean(case.name), job.state, job.verdict or "", seconds, why)
    Console(width=None if sys.stdout.isatty() else 200, markup=False, highlight=False).print(table)


def write_junit(cases: Sequence[Case], path: Path) -> None:
    """A test case per model: a failed verdict is a failure; no job, one that did not run or no files an error."""
    suite = ET.Element("testsuite", name="narrowcast", tests=str(len(cases)))
    counts = {"failure": 0, "error": 0}
    for one in cases:
        case = ET.SubElement(suite, "testcase", classname="narrowcast", name=clean(one.name))
        case.set("time", str((one.job and one.job.run_seconds) or 0.0))
        kind, text = _trouble(one)
        if kind:
            counts[kind] += 1
            ET.SubElement(case, kind, message=clean(text)).text = f"job {one.job.id}" if one.job else "no job"
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    root = ET.Element("testsuites")
    root.append(suite)
    written = path.with_name(path.name + ".tmp-narrowcast")
    ET.ElementTree(root).write(written, encoding="utf-8", xml_declaration=True)
    written.replace(path)


def _trouble(case: Case) -> tuple[str, str]:
    job = case.job
    if job is None or case.error:
        return "error", case.error
    if job.state == "SUCCEEDED":
        return ("failure", "the verdict is fail") if job.verdict == "fail" else ("", "")
    return "error", job.reason
