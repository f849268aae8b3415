"""The requests a child process can run: convert, validate, inspect."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from converter import inspection, pipeline, validation
from converter.errors import OptionError
from converter.report import view
from converter.report.json_view import read_report, to_json
from converter.request import request_from_options
from converter.runtime.session import share_thread_pool
from converter.types import Report

Tell = Callable[[Mapping[str, Any]], None]


def run(request: Mapping[str, Any], tell: Tell, crumb: Callable[[str], None]) -> Mapping[str, Any]:
    """Run one request and return the fields of its ``result`` event.

    Raises:
        NarrowcastError: what went wrong, by branch.
    """
    verbs = {"convert": _convert, "validate": _validate, "inspect": _inspect}
    verb = str(request.get("verb"))
    if verb not in verbs:
        raise OptionError(f"unknown request '{verb}'; known are {', '.join(verbs)}")
    threads = share_thread_pool(int(request.get("threads") or available_cores()))

    def progress(stage: str, done: int, total: int) -> None:
        tell({"event": "progress", "stage": stage, "done": done, "total": total})

    common = {"progress": progress, "threads": threads, "breadcrumb": crumb}
    return verbs[verb](request, common)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _convert(request: Mapping[str, Any], common: Mapping[str, Any]) -> Mapping[str, Any]:
    conversion = pipeline.convert(
        request["model"],
        request.get("samples") or None,
        request_from_options(request.get("options") or {}),
        output=request.get("output"),
        **common,
    )
    return _finish(request, conversion.report, list(conversion.files))


def _validate(request: Mapping[str, Any], common: Mapping[str, Any]) -> Mapping[str, Any]:
    report = validation.validate(
        request["reference"],
        request["model"],
        request.get("samples") or None,
        request_from_options(request.get("options") or {}),
        **common,
    )
    return _finish(request, report, [])


def _inspect(request: Mapping[str, Any], common: Mapping[str, Any]) -> Mapping[str, Any]:
    found = inspection.inspect(
        request["model"],
        request.get("samples") or None,
        request_from_options(request.get("options") or {}),
        **common,
    )
    return {"inspection": found}


_VIEWS = (("html", "html"), ("junit", "junit"), ("csv", "csv"))


def _finish(request: Mapping[str, Any], report: Report, models: list[str]) -> Mapping[str, Any]:
    """Write the report and its views, and say how it ended."""
    content = to_json(report)
    files: dict[str, Any] = {"model": models}
    if request.get("report"):
        write_file(request["report"], content)
        files["report"] = request["report"]
    shown = read_report(content)
    for key, name in _VIEWS:
        if request.get(key):
            write_file(request[key], view(shown, name))
            files[key] = request[key]
    return {
        "exit_status": 1 if report.verdict.status == "fail" else 0,
        "verdict": report.verdict.status,
        "files": files,
        "summary": shown["summary"],
        "shown": content.decode() if request.get("show") else None,
    }


def write_file(path: str, content: bytes) -> None:
    """Write a file whole or not at all."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp-narrowcast")
    try:
        draft.write_bytes(content)
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise pipeline.OutputFailure(f"'{path}' cannot be written: {error.strerror or error}") from error
