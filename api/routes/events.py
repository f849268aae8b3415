"""A job's events as a stream: state, progress, warnings; ends with the state that ends the job."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection, Row

from api.auth import JobReader
from api.errors import ApiError, not_found
from api.service import Service, ServiceDep
from worker.contract import TERMINAL
from worker.database import submit

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["jobs"])


@router.get(
    "/events",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    job_id: str,
    service: ServiceDep,
    caller: JobReader,
    last_event_id: Annotated[str | None, Header(description="number of the last event seen")] = None,
    after: Annotated[int, Query(ge=0, lt=2**31, description="the same, for who cannot set headers")] = 0,
) -> Response:
    """Server-sent events whose ids have no gaps; `Last-Event-ID` resumes behind one."""
    number = _number(last_event_id, after)
    job = await service.read(lambda c: submit.find_job(c, caller.tenant, job_id))
    if job is None:
        raise not_found("job", job_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_stream(service, job_id, number), 200, headers, "text/event-stream")


def _number(header: str | None, query: int) -> int:
    if header is None or not header.strip():
        return query
    if not header.strip().isdigit() or len(header.strip()) > 9:
        raise ApiError("MALFORMED", "Last-Event-ID is no number of an event")
    return int(header)


async def _stream(service: Service, job_id: str, number: int) -> AsyncIterator[str]:
    yield "retry: 1000\n\n"
    with service.follower.following(job_id):
        rows, ended = await service.read(lambda c: _since(c, job_id, number))
        while True:
            for row in rows:
                number = row.number
                yield _format(row)
                if row.kind == "state" and row.body["state"] in TERMINAL:
                    return
            if ended and not rows:
                return
            silent = not rows and not await service.follower.news(job_id, number, service.settings.sse_heartbeat_s)
            if silent:
                yield ": still here\n\n"
            shared = None if silent else service.follower.since(job_id, number)
            if shared is None:
                rows, ended = await service.read(lambda c, after=number: _since(c, job_id, after))  # type: ignore[misc]
            else:
                rows = shared


def _since(connection: Connection, job_id: str, number: int) -> tuple[list[Row[Any]], bool]:
    """New events, and whether no more can come: the job has ended, or is gone."""
    rows = submit.events_after(connection, job_id, number)
    state = submit.state_of(connection, job_id)
    return rows, state is None or state in TERMINAL


def _format(row: Row[Any]) -> str:
    body = json.dumps({**row.body, "at": round(row.at, 3)}, separators=(",", ":"))
    return f"id: {row.number}\nevent: {row.kind}\ndata: {body}\n\n"
