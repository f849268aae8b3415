"""Rows as the answers show them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row

from api import schemas
from api.errors import problem_body
from worker.contract import TERMINAL, State
from worker.database.contents import files_of
from worker.settings import Settings

RETRY_AFTER_S: Final = 1
"""What a follower of an open job is told to wait."""


def moment(seconds: float | None) -> dt.datetime | None:
    return None if seconds is None else dt.datetime.fromtimestamp(seconds, dt.UTC)


def certain_moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def show_job(row: Row[Any], attempts: Sequence[Row[Any]] = ()) -> schemas.Job:
    spec = row.spec
    here = f"/v1/jobs/{row.id}"
    links = {"self": here, "events": f"{here}/events", "logs": f"{here}/logs"}
    if row.state == State.SUCCEEDED:
        links |= {"artifacts": f"{here}/artifacts", "report": f"{here}/report", "layers": f"{here}/layers"}
    end = row.finished_at
    return schemas.Job(
        id=row.id,
        name=row.name,
        state=State(row.state),
        verdict=row.verdict,
        progress=schemas.JobProgress(stage=row.stage, done=row.done, total=row.total),
        device=row.device,
        model={"id": row.model_id, "entry": spec["entry"], "bytes": sum(one["size"] for one in spec["files"])},
        inputs=[{"id": one["id"], "filename": one["filename"]} for one in spec["batches"]],
        options=spec["options"],
        labels=row.labels,
        deadline_s=row.deadline_s,
        retry_of=row.retry_of,
        pinned=row.pinned,
        error=_show_error(row, attempts),
        summary=row.summary,
        attempts=[show_attempt(number, one) for number, one in enumerate(attempts, 1)],
        created_at=certain_moment(row.created_at),
        started_at=moment(row.started_at),
        finished_at=moment(end),
        queue_seconds=None if row.started_at is None else max(0.0, round(row.started_at - row.created_at, 3)),
        run_seconds=None if end is None or row.started_at is None else max(0.0, round(end - row.started_at, 3)),
        artifacts_expire_at=None if row.pinned else moment(row.artifacts_until),
        expires_at=None if row.pinned else moment(row.expires_at),
        links=links,
    )


def _show_error(row: Row[Any], attempts: Sequence[Row[Any]]) -> dict[str, Any] | None:
    """A failed job's problem document; a job that waits for another attempt has none."""
    if row.state != State.FAILED or row.error is None:
        return None
    stored = row.error
    outcomes = [f"{one.outcome} at {one.stage or 'start'}" for one in attempts]
    return problem_body(stored["code"], stored["detail"]) | {
        "stage": stored["stage"],
        "node": stored["node"],
        "retryable": stored["retryable"],
        "exit_status": stored["exit_status"],
        "attempts": outcomes,
    }


def show_attempt(number: int, row: Row[Any]) -> schemas.Attempt:
    return schemas.Attempt(
        number=number,
        worker=row.worker,
        outcome=row.outcome or None,
        stage=row.stage,
        node=row.node,
        signal=row.signal,
        exit_status=row.exit_status,
        peak_rss_bytes=row.peak_rss,
        started_at=certain_moment(row.started_at),
        finished_at=moment(row.finished_at),
    )


def job_etag(row: Row[Any]) -> str:
    return f'"{row.id}.{row.last_event}{".p" if row.pinned else ""}"'


def job_headers(row: Row[Any]) -> dict[str, str]:
    """ETag, and how long to wait before asking again while the job is open."""
    headers = {"ETag": job_etag(row), "Cache-Control": "no-cache"}
    if row.state not in TERMINAL:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return headers


def show_model(connection: Connection, row: Row[Any], settings: Settings) -> schemas.Model:
    files = [
        {"path": one.path, "blob": f"sha256:{one.sha256}", "size": one.size} for one in files_of(connection, row.id)
    ]
    return schemas.Model(
        id=row.id,
        entry=row.entry,
        format=row.format,
        files=files,
        created_at=certain_moment(row.created_at),
        expires_at=certain_moment(row.used_at + settings.keep_models_s),
    )


def show_batch(row: Row[Any], settings: Settings) -> schemas.Batch:
    return schemas.Batch(
        id=row.id,
        filename=row.filename,
        size=row.size,
        blob=f"sha256:{row.sha256}" if row.sha256 else None,
        generator=row.generator,
        created_at=certain_moment(row.created_at),
        expires_at=certain_moment(row.used_at + settings.keep_models_s),
    )
