"""What a finished job leaves: files, the report in several forms, layers page by page, the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import anyio
from fastapi import APIRouter, Header, Query, Request, Response
from sqlalchemy import Connection, Row, select

from api import schemas
from api.auth import JobReader, ResultReader
from api.downloads import StoredFile, send_file
from api.errors import ApiError, not_found
from api.pages import PageSize, pack, unpack
from api.service import Caller, Service, ServiceDep
from api.views import moment
from worker.contract import State
from worker.database import submit
from worker.database.engine import now
from worker.database.tables import artifacts, jobs
from worker.layers import SORTABLE, TEXT_COLUMNS, read_layers
from worker.publish_names import set_name

router = APIRouter(prefix="/v1/jobs/{job_id}", tags=["results"])

REPORT_TYPES: Final = {
    "application/json": "report",
    "text/html": "html",
    "text/csv": "csv",
    "application/xml": "junit",
    "text/xml": "junit",
    "application/junit+xml": "junit",
    "text/markdown": "markdown",
    "application/vnd.model-explorer+json": "nodes",
}
FORMATS: Final = {"json": "report", "html": "html", "csv": "csv", "junit": "junit", "markdown": "markdown",
                  "model-explorer": "nodes"}  # fmt: skip
HIDDEN_ROLES: Final = ("layers",)


def _finished(connection: Connection, caller: Caller, job_id: str) -> Row[Any]:
    """The job when its files are there; raises NOT_FOUND, CONFLICT or GONE."""
    gone = (jobs.c.artifacts_until < now()).label("gone")
    query = select(jobs, gone).where(jobs.c.id == job_id, jobs.c.tenant == caller.tenant)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise not_found("job", job_id)
    if row.state != State.SUCCEEDED:
        raise ApiError("CONFLICT", f"the job is {row.state}; only one that SUCCEEDED has files")
    if row.published_fence is None or (row.gone and not row.pinned):
        raise ApiError("GONE", "the job's files have expired; retry the job")
    return row


def _list(connection: Connection, caller: Caller, job_id: str) -> tuple[Row[Any], list[Row[Any]]]:
    row = _finished(connection, caller, job_id)
    files = connection.execute(select(artifacts).where(artifacts.c.job_id == job_id).order_by(artifacts.c.name))
    return row, list(files)


def _stored(job: Row[Any], file: Row[Any]) -> StoredFile:
    place = f"{set_name(job.id, job.published_fence)}/{file.name}"
    return StoredFile(place, file.name, file.size, file.sha256, file.media_type)


@router.get("/artifacts", response_model=schemas.ArtifactList)
def list_artifacts(job_id: str, service: ServiceDep, caller: ResultReader) -> schemas.ArtifactList:
    """Name, role, size and SHA-256 of every file."""
    job, files = service.read_now(lambda c: _list(c, caller, job_id))
    items = [
        schemas.ArtifactItem(
            name=one.name, role=one.role, media_type=one.media_type, size=one.size, sha256=one.sha256,
            href=f"/v1/jobs/{job_id}/artifacts/{quote(one.name)}",
        )
        for one in files
        if one.role not in HIDDEN_ROLES
    ]  # fmt: skip
    return schemas.ArtifactList(items=items, expires_at=None if job.pinned else moment(job.artifacts_until))


@router.get(
    "/artifacts/{name}", responses={206: {"description": "the range asked for"}, 304: {"description": "unchanged"}}
)
async def download(job_id: str, name: str, request: Request, service: ServiceDep, caller: ResultReader) -> Response:
    """The file, or a range of it."""
    job, files = await service.read(lambda c: _list(c, caller, job_id))
    found = [one for one in files if one.name == name]
    if not found:
        raise not_found("file", name)
    return await send_file(request, service, _stored(job, found[0]))


@router.get(
    "/report",
    responses={200: {"content": {kind: {} for kind in REPORT_TYPES}, "description": "the report as `Accept` asks"}},
)
async def report(
    job_id: str,
    request: Request,
    service: ServiceDep,
    caller: ResultReader,
    accept: Annotated[str | None, Header()] = None,
    format: Annotated[str | None, Query(pattern="^(" + "|".join(FORMATS) + ")$")] = None,  # noqa: A002 - its public name
) -> Response:
    """The report by `Accept` or `?format=`: JSON (the contract), HTML, CSV, JUnit, Markdown, node data."""
    role = FORMATS[format] if format else _accepted(accept)
    job, files = await service.read(lambda c: _list(c, caller, job_id))
    file = next((one for one in files if one.role == role), None)
    if file is None:
        raise not_found("view of the report", role)
    request.scope.setdefault("narrowcast.headers", {})["Vary"] = "Accept"
    return await send_file(request, service, _stored(job, file), inline=True)


def _accepted(accept: str | None) -> str:
    """The first type of the header that we have; a wildcard or nothing means JSON."""
    if not accept:
        return "report"
    ranked = []
    for number, part in enumerate(accept.split(",")):
        kind, _, rest = part.partition(";")
        quality = rest.partition("q=")[2].strip() or "1"
        try:
            ranked.append((-float(quality), number, kind.strip().lower()))
        except ValueError:
            continue
    for _, _, kind in sorted(ranked):
        if kind in ("*/*", "application/*"):
            return "report"
        if kind in REPORT_TYPES:
            return REPORT_TYPES[kind]
    known = ", ".join(REPORT_TYPES)
    raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"the report is not available as {accept[:100]!r}; choose from {known}")


@router.get("/layers", response_model=schemas.LayerPage)
async def layers(
    job_id: str,
    service: ServiceDep,
    caller: ResultReader,
    sort: Annotated[
        str, Query(pattern="^-?(" + "|".join(SORTABLE) + ")$", description="`-` for descending")
    ] = "position",
    op_type: Annotated[str | None, Query(max_length=200)] = None,
    node: Annotated[str | None, Query(max_length=500, description="part of a node's name")] = None,
    value: Annotated[str | None, Query(max_length=500, description="part of a value's name")] = None,
    page_size: PageSize = 100,
    page_token: Annotated[str | None, Query(max_length=500)] = None,
) -> schemas.LayerPage:
    """The report's layers, sorted and filtered; the same records as in the JSON report."""
    job, files = await service.read(lambda c: _list(c, caller, job_id))
    file = next((one for one in files if one.role == "layers"), None)
    if file is None:
        raise not_found("layers of job", job_id)
    given = {"op_type": op_type, "node": node, "value": value}
    match = {name: text for name, text in given.items() if text}
    column = sort.removeprefix("-")
    after = _position(page_token, column)
    path = _local_path(service, _stored(job, file))
    rows = await anyio.to_thread.run_sync(
        read_layers, path, column, sort.startswith("-"), after, page_size + 1, match, limiter=service.disk
    )
    token = pack([rows[page_size - 1][0], rows[page_size - 1][1]]) if len(rows) > page_size else None
    return schemas.LayerPage(items=[json.loads(row[2]) for row in rows[:page_size]], next_page_token=token)


def _position(token: str | None, column: str) -> tuple[Any, int] | None:
    if not token:
        return None
    kinds: tuple[type, ...] = (str, type(None)) if column in TEXT_COLUMNS else (int, float, type(None))
    last, position = unpack(token, kinds, (int,))
    return last, position


def _local_path(service: Service, file: StoredFile) -> Path:
    try:
        with service.storage.open(file.place) as reader:
            return Path(reader.name)
    except FileNotFoundError as error:
        raise ApiError("GONE", f"{file.name} is no longer stored") from error


@router.get("/logs", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def logs(job_id: str, request: Request, service: ServiceDep, caller: JobReader) -> Response:
    """What the engine wrote to its error output, attempt by attempt, without paths of the worker."""

    def query(connection: Connection) -> str:
        if submit.find_job(connection, caller.tenant, job_id) is None:
            raise not_found("job", job_id)
        return "".join(
            f"--- attempt {number}: {one.outcome or 'running'}\n{one.log}"
            for number, one in enumerate(submit.attempts_of(connection, job_id), 1)
        )

    content = service.read_now(query).encode(errors="replace")
    start = _log_start(request.headers.get("range"), len(content))
    headers = {"Accept-Ranges": "bytes"}
    if start is None:
        return Response(content, 200, headers, media_type="text/plain; charset=utf-8")
    headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
    return Response(content[start:], 206, headers, media_type="text/plain; charset=utf-8")


def _log_start(text: str | None, size: int) -> int | None:
    """A log only grows, so the one range that makes sense is "from here on"."""
    number = (text or "").removeprefix("bytes=").removesuffix("-")
    if not text or not number.isdigit() or not text.endswith("-") or len(number) > 18:
        return None
    if int(number) >= size:
        raise ApiError("RANGE_NOT_SATISFIABLE", f"the log has {size} bytes", limit=size)
    return int(number)
