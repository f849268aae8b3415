"""Alive, ready, figures, capabilities, and the page behind every error code."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import Connection, func, select

from api.auth import JobReader, caller_of
from api.downloads import DIGESTED_RANGE_BYTES
from api.errors import ApiError, not_found
from api.manifest import BATCHES, FORMATS
from api.metrics import registry_of
from api.service import Service, ServiceDep
from converter import __version__
from converter.errors import NarrowcastError
from worker.contract import STAGES, VERDICTS, State
from worker.database.engine import insert_or_ignore, now
from worker.database.tables import answers, workers
from worker.problems import PROBLEMS
from worker.recipes import DISTRIBUTIONS, MAX_BYTES

router = APIRouter(tags=["service"])
TOLERANCES: Final = ("fp16-default", "bf16-default", "strict", "loose")


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """This process answers."""
    return {"status": "alive", "version": __version__}


@router.get("/readyz", responses={503: {"description": "a part is down; `checks` says which"}})
def readyz(service: ServiceDep) -> dict[str, Any]:
    """Database and storage can be written, the broker answers, and a worker's consumer loop is alive."""
    checks = {
        name: _check(lambda one=one: one(service))  # type: ignore[misc]
        for name, one in (("database", _database), ("broker", _broker), ("storage", _storage), ("workers", _workers))
    }
    if any(checks.values()):
        down = ", ".join(name for name, why in checks.items() if why)
        raise ApiError("NOT_READY", f"not ready: {down}", checks={name: why or "ok" for name, why in checks.items()})
    return {"status": "ready", "checks": dict.fromkeys(checks, "ok")}


def _check(probe: Callable[[], None]) -> str:
    try:
        probe()
    except (NarrowcastError, OSError) as error:
        return str(error)[:300] or type(error).__name__
    return ""


def _database(service: Service) -> None:
    with service.database.write() as connection:
        add = insert_or_ignore(connection.dialect)(answers).values(
            tenant="", idempotency_key="readyz", request_sha256="", status=0, location="", body={}, created_at=now()
        )
        changed = {"created_at": now()}
        connection.execute(add.on_conflict_do_update(index_elements=["tenant", "idempotency_key"], set_=changed))


def _broker(service: Service) -> None:
    service.doorbell.ping()


def _storage(service: Service) -> None:
    for folder in (service.settings.uploads_dir, service.settings.store_dir):
        path = folder / f"ready-{secrets.token_hex(6)}"
        path.write_bytes(b"x")
        path.unlink()
    free = shutil.disk_usage(service.settings.uploads_dir).free
    if free < service.settings.disk_reserve_bytes:
        raise OSError(f"{free} bytes are free, {service.settings.disk_reserve_bytes} are the reserve")


def _workers(service: Service) -> None:
    if not service.read_now(lambda c: _living(c, service)):
        raise OSError("no worker's consumer loop has been alive lately")


def _living(connection: Connection, service: Service) -> dict[str, int]:
    alive = workers.c.beat_at > now() - 4 * service.settings.worker_beat_s
    rows = connection.execute(select(workers.c.device, func.count()).where(alive).group_by(workers.c.device))
    return {row[0]: row[1] for row in rows}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, service: ServiceDep) -> Response:
    """Prometheus figures; with keys, for the scope ``admin``."""
    if service.needs_key and "admin" not in (await caller_of(request, service)).scopes:
        raise ApiError("FORBIDDEN", "this needs a key with the scope 'admin'")
    registry = registry_of(service.database, service.settings.lease_s)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/errors/{code}")
async def error_page(code: str) -> dict[str, Any]:
    """What a code means and what to do about it."""
    row = PROBLEMS.get(code)
    if row is None:
        raise not_found("code", code)
    return {"code": row.code, "title": row.title, "status": row.status, "retryable": row.retryable, "hint": row.hint}


@router.get("/v1/capabilities", responses={304: {"description": "unchanged"}})
def capabilities(
    service: ServiceDep,
    _: JobReader,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """What this installation can do and where its limits are."""
    body = _capabilities(service)
    content = json.dumps(body, sort_keys=True).encode()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if if_none_match is not None and etag in if_none_match:
        return Response(status_code=304, headers={"ETag": etag})
    return JSONResponse(body, headers={"ETag": etag, "Cache-Control": "no-cache"})


def _capabilities(service: Service) -> dict[str, Any]:
    settings = service.settings
    return {
        "version": __version__,
        "devices": service.read_now(lambda c: _living(c, service)),
        "to": ["fp16", "bf16"],
        "formats": {"models": sorted(FORMATS), "batches": list(BATCHES), "distributions": list(DISTRIBUTIONS)},
        "tolerances": list(TOLERANCES),
        "states": [str(one) for one in State],
        "stages": list(STAGES),
        "verdicts": list(VERDICTS),
        "isolation": "process",
        "limits": {
            "upload_bytes": settings.max_upload_bytes,
            "multipart_bytes": settings.max_multipart_bytes,
            "json_bytes": settings.max_json_bytes,
            "files": settings.max_files,
            "recipe_bytes": MAX_BYTES,
            "wait_s": settings.max_wait_s,
            "deadline_s": settings.max_deadline_s,
            "default_deadline_s": settings.default_deadline_s,
            "attempts": settings.max_attempts,
            "open_jobs": settings.quota_open_jobs,
            "stored_bytes": settings.quota_bytes,
            "requests_per_minute": settings.rate_per_minute,
            "digested_range_bytes": DIGESTED_RANGE_BYTES,
        },
        "keeps_s": {
            "uploads": settings.keep_uploads_s,
            "models": settings.keep_models_s,
            "artifacts": settings.keep_artifacts_s,
            "jobs": settings.keep_jobs_s,
            "answers": settings.keep_answers_s,
        },
    }
