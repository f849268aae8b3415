"""Content by its SHA-256: is it there already, and one-shot sending of small files."""

from __future__ import annotations

import hashlib
import secrets
from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Request, Response
from sqlalchemy import Connection
from starlette.requests import ClientDisconnect

from api import schemas
from api.auth import BlobWriter
from api.contents import refuse_if_full, take_in
from api.errors import ApiError, not_found
from api.intake import Intake, exclusive
from api.service import Service, ServiceDep
from worker.database import contents

router = APIRouter(prefix="/v1/blobs", tags=["blobs"])

DigestInPath = Annotated[
    str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 in lower-case hex", examples=[schemas.EXAMPLE_DIGEST[7:]])
]


@router.head("/sha256:{digest}", status_code=200)
def probe_blob(digest: DigestInPath, service: ServiceDep, caller: BlobWriter) -> Response:
    """200 when this tenant has sent the content before, 404 otherwise; whether somebody else has it stays hidden."""
    row = service.write_now(lambda c: contents.held_blob(c, caller.tenant, digest))
    if row is None:
        raise not_found("blob", digest)
    return Response(headers={"Blob-Size": str(row.size)})


@router.put(
    "/sha256:{digest}",
    status_code=201,
    response_model=schemas.Blob,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def put_blob(request: Request, digest: DigestInPath, service: ServiceDep, caller: BlobWriter) -> schemas.Blob:
    """Send a whole file in one request; it cannot be resumed, so use an upload for large ones."""
    size = _announced(request)
    await service.read(lambda c: _refuse_new(service, c, caller.tenant, digest, size or 0))
    path = service.settings.uploads_dir / f"put-{secrets.token_hex(12)}"
    path.touch()
    try:
        with exclusive(path) as descriptor:
            limit = service.settings.max_upload_bytes if size is None else size
            intake = Intake(service, descriptor, 0, limit, coming=size or 0)
            intake.hash = hashlib.sha256()
            try:
                await intake.receive(request.stream())
            except ClientDisconnect as error:
                raise ApiError("MALFORMED", "the connection ended before the body did") from error
        found = intake.hash.hexdigest()
        if found != digest:
            raise ApiError("DIGEST_MISMATCH", f"the body has SHA-256 {found}, the path says {digest}")
        await anyio.to_thread.run_sync(take_in, service, caller, path, intake.offset, digest)
        return schemas.Blob(blob=f"sha256:{digest}", size=intake.offset)
    finally:
        path.unlink(missing_ok=True)


def _refuse_new(service: Service, connection: Connection, tenant: str, digest: str, size: int) -> None:
    if contents.sees_blob(connection, tenant, digest) is None:  # what is held already costs nothing more
        refuse_if_full(service, connection, tenant, size)


def _announced(request: Request) -> int | None:
    length = request.headers.get("content-length")
    return int(length) if length is not None and length.isdigit() else None
