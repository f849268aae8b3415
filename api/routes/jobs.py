"""Jobs: submit, follow, cancel, retry, forget."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, cast

import anyio
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from sqlalchemy import Connection, Row, Select, delete, select

from api import schemas
from api.auth import JobReader, JobWriter
from api.errors import ApiError, field_errors, not_found
from api.idempotency import Answer, IdempotencyKey, once
from api.jobs import cancel_answer, prepare, retry_job, submit_job
from api.multipart import submit_form
from api.pages import PageSize, PageToken, newest_first
from api.service import Caller, Service, ServiceDep
from api.views import job_etag, job_headers, show_job
from worker.contract import TERMINAL, State
from worker.database import submit
from worker.database.tables import jobs
from worker.publish_names import set_name

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

Wait = Annotated[
    float | None, Query(ge=0, le=3600, description="seconds to wait for news; capped as /v1/capabilities says")
]
Prefer = Annotated[str | None, Header(description="`wait=N`: answer when the job has ended, or after N seconds")]
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})")
_LABEL: Final = re.compile(r"^[A-Za-z0-9_./-]{1,63}=")
_CREATE_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/JobRequest"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["model"],
                    "properties": {
                        "model": {"type": "array", "items": {"type": "string", "format": "binary"},
                                  "description": "the model file, and files of external data"},
                        "samples": {"type": "array", "items": {"type": "string", "format": "binary"}},
                        "options": {"type": "string", "description": "JSON as in the other form of this request"},
                        "to": {"type": "string", "enum": ["fp16", "bf16"]},
                    },
                }
            },
        },
    }
}  # fmt: skip


@router.post(
    "", status_code=202, response_model=schemas.Job, openapi_extra=cast("dict[str, Any]", _CREATE_BODY),
    responses={200: {"model": schemas.Job, "description": "it has ended already (`Prefer: wait`, `reuse: allow`)"}},
)  # fmt: skip
async def create_job(
    request: Request,
    service: ServiceDep,
    caller: JobWriter,
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
    validate_only: Annotated[bool, Query(description="look everything up, start nothing")] = False,
) -> Response:
    """Submit a conversion: as JSON over ids, or as one multipart request with the files themselves."""
    wait = _wanted_wait(service, prefer)
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        answer = await submit_form(request, service, caller, idempotency_key)
    else:
        body = _parse(await request.body())
        if validate_only:
            spec = (await service.write(lambda c: prepare(c, caller.tenant, body))).spec
            return JSONResponse({"valid": True, "entry": spec.entry, "options": dict(spec.options)})
        asked = ["POST", "/v1/jobs", body.model_dump(mode="json")]
        act = lambda connection: submit_job(service, connection, caller, body)  # noqa: E731 - passed on by name
        answer = await anyio.to_thread.run_sync(once, service, caller, idempotency_key, asked, act)
    service.relay.wake()
    return await _after(service, caller, answer, wait)


def _parse(body: bytes) -> schemas.JobRequest:
    try:
        return schemas.JobRequest.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False)
        code = "MALFORMED" if any(one["type"] == "json_invalid" for one in found) else "INVALID_REQUEST"
        raise ApiError(code, "the request does not fit the schema", errors=field_errors(found)) from error


def _wanted_wait(service: Service, prefer: str | None) -> float | None:
    match = _WAIT.search(prefer or "")
    return None if match is None else min(float(match[1]), service.settings.max_wait_s)


async def _after(service: Service, caller: Caller, answer: Answer, wait: float | None) -> Response:
    """Wait for the end when that is preferred; 200 when it came in time."""
    job_id = str(answer.body["id"])
    headers = {"Location": answer.location}
    if answer.replayed:
        headers["Idempotency-Replayed"] = "true"
    if wait is not None:
        headers["Preference-Applied"] = f"wait={wait:g}"
        row, attempts = await _followed(service, caller, job_id, wait, until_end=True)
        status = 200 if row.state in TERMINAL else 202
        return JSONResponse(show_job(row, attempts).model_dump(mode="json"), status, headers | job_headers(row))
    if answer.status == 202:
        headers["Retry-After"] = "1"
    return JSONResponse(dict(answer.body), answer.status, headers)


async def _followed(
    service: Service, caller: Caller, job_id: str, wait: float, *, until_end: bool
) -> tuple[Row[Any], list[Row[Any]]]:
    """The job after its end (or its next news), or after ``wait`` seconds."""
    limit = anyio.current_time() + wait
    with service.follower.following(job_id):
        row, attempts = await service.read(lambda c: _read(c, caller, job_id))
        while row.state not in TERMINAL and (left := limit - anyio.current_time()) > 0:
            if not await service.follower.news(job_id, row.last_event, left):
                break
            row, attempts = await service.read(lambda c: _read(c, caller, job_id))
            if not until_end:
                break
    return row, attempts


def _read(connection: Connection, caller: Caller, job_id: str) -> tuple[Row[Any], list[Row[Any]]]:
    row = submit.find_job(connection, caller.tenant, job_id)
    if row is None:
        raise not_found("job", job_id)
    return row, submit.attempts_of(connection, job_id)


@router.get(
    "/{job_id}", response_model=schemas.Job, responses={304: {"description": "nothing new since `If-None-Match`"}}
)
async def read_job(
    job_id: str,
    service: ServiceDep,
    caller: JobReader,
    wait: Wait = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The job as it is; with `wait` as it is when something has changed (long poll)."""
    row, attempts = await service.read(lambda c: _read(c, caller, job_id))
    unchanged = if_none_match is not None and job_etag(row) in if_none_match
    if wait and row.state not in TERMINAL and (if_none_match is None or unchanged):
        limit = min(wait, service.settings.max_wait_s)
        row, attempts = await _followed(service, caller, job_id, limit, until_end=if_none_match is None)
        unchanged = if_none_match is not None and job_etag(row) in if_none_match
    if unchanged:
        return Response(status_code=304, headers=job_headers(row))
    return Response(show_job(row, attempts).model_dump_json(), 200, job_headers(row), media_type="application/json")


@router.get("", response_model=schemas.JobPage)
def list_jobs(
    service: ServiceDep,
    caller: JobReader,
    state: State | None = None,
    verdict: Annotated[str | None, Query(pattern="^(pass|fail|unchecked)$")] = None,
    model: Annotated[str | None, Query(max_length=200)] = None,
    label: Annotated[list[str] | None, Query(max_length=10, description="NAME=VALUE")] = None,
    created_after: Annotated[float | None, Query(ge=0, le=1e11, description="seconds since 1970")] = None,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """This tenant's jobs, newest first."""
    query = select(jobs).where(jobs.c.tenant == caller.tenant)
    for column, value in ((jobs.c.state, state), (jobs.c.verdict, verdict), (jobs.c.model_id, model)):
        if value is not None:
            query = query.where(column == value)
    if created_after is not None:
        query = query.where(jobs.c.created_at > created_after)
    query = _with_labels(query, label or [])

    def read(connection: Connection) -> dict[str, Any]:
        rows, token = newest_first(connection, query, jobs, page_size, page_token)
        return {"items": [show_job(row) for row in rows], "next_page_token": token}

    return service.read_now(read)


def _with_labels(query: Select[Any], labels: list[str]) -> Select[Any]:
    for text in labels:
        name, _, value = text.partition("=")
        if not _LABEL.match(text):
            raise ApiError("INVALID_REQUEST", f"the label {text[:60]!r} is not NAME=VALUE")
        query = query.where(jobs.c.labels[name].as_string() == value)
    return query


@router.post("/{job_id}/cancel", status_code=202, response_model=schemas.Job, responses={200: {"model": schemas.Job}})
def cancel_job(
    job_id: str,
    service: ServiceDep,
    caller: JobWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Ask the job to stop: 202 while it is stopping, 200 once it has, 409 when it had ended already."""
    asked = ["POST", f"/v1/jobs/{job_id}/cancel"]
    return once(service, caller, idempotency_key, asked, lambda c: cancel_answer(service, c, caller, job_id)).response()


@router.post("/{job_id}/retry", status_code=202, response_model=schemas.Job)
def retry(
    job_id: str,
    service: ServiceDep,
    caller: JobWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Run the same conversion again, as a new job with `retry_of`."""
    asked = ["POST", f"/v1/jobs/{job_id}/retry"]
    answer = once(service, caller, idempotency_key, asked, lambda c: retry_job(service, c, caller, job_id))
    service.relay.wake()
    return answer.response(Retry_After="1")


@router.patch("/{job_id}", response_model=schemas.Job)
def pin_job(job_id: str, body: schemas.PinRequest, service: ServiceDep, caller: JobWriter) -> schemas.Job:
    """Pin the job: neither its record nor its files expire. Or unpin it."""
    row = service.write_now(lambda c: submit.pin(c, caller.tenant, job_id, body.pinned))
    if row is None:
        raise not_found("job", job_id)
    return show_job(row)


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: str, service: ServiceDep, caller: JobWriter) -> Response:
    """Forget an ended job and its files."""

    def change(connection: Connection) -> int | None:
        row = submit.find_job(connection, caller.tenant, job_id)
        if row is None:
            raise not_found("job", job_id)
        if row.state not in TERMINAL:
            raise ApiError("CONFLICT", f"the job is {row.state}; cancel it first")
        connection.execute(delete(jobs).where(jobs.c.id == job_id))
        return cast("int | None", row.published_fence)

    fence = service.write_now(change)
    if fence is not None:
        service.storage.delete(set_name(job_id, fence))
    return Response(status_code=204)
