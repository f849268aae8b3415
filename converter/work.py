"""The requests a child process can run: convert, validate, inspect."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from converter import inspection, pipeline, validation
from converter.errors import InputError, OptionError
from converter.report import view
from converter.report.json_view import dump, report_object
from converter.request import request_from_options
from converter.runtime.session import share_thread_pool
from converter.source.draft import Draft
from converter.source.save import OutputFailure, check_target
from converter.tracing import run_hand_back, run_trace
from converter.types import Report

Tell = Callable[[Mapping[str, Any]], None]


def run(request: Mapping[str, Any], tell: Tell, crumb: Callable[[str], None]) -> Mapping[str, Any]:
    """Run one request and return the fields of its ``result`` event.

    Raises:
        NarrowcastError: what went wrong, by branch.
    """
    verbs = {"convert": _convert, "validate": _validate, "inspect": _inspect}
    programs = {"trace": run_trace, "hand_back": run_hand_back}
    verb = str(request.get("verb"))
    if verb in programs:
        return programs[verb](request, crumb)
    if verb not in verbs:
        raise OptionError(f"unknown request '{verb}'; known are {', '.join((*verbs, *programs))}")
    for key in _OUTPUTS:
        if request.get(key):
            check_target(Path(request[key]))  # now, not after a long run
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
_OUTPUTS = ("output", "report", *(key for key, _ in _VIEWS))


def _finish(request: Mapping[str, Any], report: Report, models: list[str]) -> Mapping[str, Any]:
    """Write the report and its views, and say how it ended."""
    shown = report_object(report)
    content = dump(shown)
    files: dict[str, Any] = {"model": models}
    if request.get("report"):
        write_file(request["report"], content)
        files["report"] = request["report"]
    for key, name in _VIEWS:
        if request.get(key):
            write_file(request[key], view(shown, name))
            files[key] = request[key]
    refusal = _refusal(report)
    return {
        "exit_status": InputError.exit_status if refusal else 1 if report.verdict.status == "fail" else 0,
        "verdict": report.verdict.status,
        "refusal": refusal,
        "files": files,
        "summary": shown["summary"],
        "shown": _shown(content, shown, request.get("show")),
    }


def _shown(content: bytes, report: Mapping[str, Any], wanted: Any) -> str | None:
    """What the caller asked to see, as JSON: the whole ``report``, or its ``summary`` (verdict and outputs)."""
    if not wanted:
        return None
    if wanted == "summary":
        return json.dumps({key: report[key] for key in ("verdict", "outputs", "summary")})
    return content.decode()


def _refusal(report: Report) -> str:
    """Why a program that was asked for is not there; empty when it is, or when none was asked for."""
    handed = report.program.handed_back if report.program else None
    return handed.reason if handed is not None and handed.status == "refused" else ""


def write_file(path: str, content: bytes) -> None:
    """Write a file whole or not at all."""
    target = Path(path).resolve()
    check_target(target)
    try:
        with Draft(target.parent) as draft:
            draft.write(content)
            draft.publish(target, durable=False)
    except OSError as error:
        raise OutputFailure(f"'{path}' cannot be written: {error.strerror or error}") from error
