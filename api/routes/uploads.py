"""Resumable uploads: tus 1.0 (core, creation, expiration, termination, checksum), in the words of the IETF draft.

A plain client needs three requests: POST to announce, PATCH to send (again from the HEAD's offset after a
break), and what the last PATCH leaves is a blob.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import email.utils
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, cast

import anyio
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from sqlalchemy import Connection, Row, delete, update
from starlette.requests import ClientDisconnect

from api import schemas
from api.auth import BlobWriter
from api.contents import refuse_if_full, take_in
from api.errors import ApiError, field_errors, not_found
from api.idempotency import Answer, IdempotencyKey, once
from api.intake import Intake, cut, durable_size, exclusive, file_digest, storage_errors
from api.service import Caller, Service, ServiceDep
from api.views import certain_moment
from worker.database import contents
from worker.database.tables import uploads

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

TUS_VERSION: Final = "1.0.0"
TUS_EXTENSIONS: Final = "creation,expiration,termination,checksum"
PATCH_TYPES: Final = ("application/offset+octet-stream", "application/partial-upload")
_DIGEST: Final = re.compile(r"^[0-9a-f]{64}$")
_JSON_BODY: Final = {
    "requestBody": {
        "content": {"application/json": {"schema": schemas.UploadRequest.model_json_schema()}},
        "description": "or, as tus has it, no body and the headers Upload-Length and Upload-Metadata",
    }
}
_BYTES_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in PATCH_TYPES},
    }
}


@router.options("", status_code=204)
def describe_uploads(service: ServiceDep) -> Response:
    """What this end of tus can do."""
    return Response(
        status_code=204,
        headers={
            "Tus-Resumable": TUS_VERSION,
            "Tus-Version": TUS_VERSION,
            "Tus-Extension": TUS_EXTENSIONS,
            "Tus-Checksum-Algorithm": "sha256",
            "Tus-Max-Size": str(service.settings.max_upload_bytes),
        },
    )


@router.post(
    "", status_code=201, response_model=schemas.Upload, openapi_extra=cast("dict[str, Any]", _JSON_BODY),
    responses={200: {"model": schemas.Blob, "description": "the content is here already"}},
)  # fmt: skip
async def create_upload(
    request: Request,
    service: ServiceDep,
    caller: BlobWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Announce a file.  200 instead of 201: the tenant has this content already, nothing is to be sent."""
    _check_tus(request)
    wanted = _wanted(request.headers, await request.body())

    def act(connection: Connection) -> Answer:
        if wanted.sha256:
            held = contents.held_blob(connection, caller.tenant, wanted.sha256)
            if held is not None:
                return Answer(200, {"blob": f"sha256:{held.sha256}", "size": held.size})
        refuse_if_full(service, connection, caller.tenant, wanted.size)
        row = contents.insert_upload(
            connection, caller.tenant, wanted.size, wanted.sha256, wanted.filename, service.settings.keep_uploads_s
        )
        with storage_errors():
            (service.settings.uploads_dir / row.id).touch()
        return Answer(201, _show(row, 0).model_dump(mode="json"), f"/v1/uploads/{row.id}")

    asked = ["POST", "/v1/uploads", wanted.model_dump()]
    answer = await anyio.to_thread.run_sync(once, service, caller, idempotency_key, asked, act)
    response = answer.response(Tus_Resumable=TUS_VERSION)
    if answer.status == 201:
        response.headers["Upload-Offset"] = "0"
        response.headers["Upload-Expires"] = _http_date(str(answer.body["expires_at"]))
    return response


@router.head("/{upload_id}", status_code=204)
def upload_offset(upload_id: str, request: Request, service: ServiceDep, caller: BlobWriter) -> Response:
    """How many bytes are stored for good: where a broken upload goes on."""
    _check_tus(request)
    row = _find(service, caller, upload_id)
    offset = row.size if row.blob else _stored(service, row)
    return Response(status_code=204, headers=_headers(row, offset) | {"Cache-Control": "no-store"})


@router.get("/{upload_id}", response_model=schemas.Upload)
def read_upload(upload_id: str, service: ServiceDep, caller: BlobWriter) -> schemas.Upload:
    """The same as HEAD, as JSON."""
    row = _find(service, caller, upload_id)
    return _show(row, row.size if row.blob else _stored(service, row))


@router.patch("/{upload_id}", status_code=204, openapi_extra=cast("dict[str, Any]", _BYTES_BODY))
async def append(upload_id: str, request: Request, service: ServiceDep, caller: BlobWriter) -> Response:
    """Send bytes from `Upload-Offset` on; what arrives is kept even when the connection breaks.

    The last byte completes the upload: its content is then a blob.
    """
    _check_tus(request)
    _check_type(request)
    offset = _offset(request)
    checksum = _checksum(request.headers)
    find = partial(_find, service, caller, upload_id)
    row = await anyio.to_thread.run_sync(find)
    with contextlib.ExitStack() as held:
        if not row.blob:
            descriptor = held.enter_context(_writer(service, row))
            row = await anyio.to_thread.run_sync(find)  # nobody else can change it from here on
        if row.blob:
            _expect_offset(offset, row.size)
            return Response(status_code=204, headers=_headers(row, row.size))
        _expect_offset(offset, await anyio.to_thread.run_sync(_stored, service, row))
        reached = await _receive(service, request, row, descriptor, offset, checksum)
        if reached == row.size:
            row = await anyio.to_thread.run_sync(_complete, service, caller, row)
    return Response(status_code=204, headers=_headers(row, reached))


@router.post("/{upload_id}/complete", status_code=201, response_model=schemas.Blob)
def complete(upload_id: str, service: ServiceDep, caller: BlobWriter) -> schemas.Blob:
    """Say that all bytes are sent, and get the blob; harmless to repeat."""
    row = _find(service, caller, upload_id)
    with contextlib.ExitStack() as held:
        if not row.blob:
            held.enter_context(_writer(service, row))
            row = _find(service, caller, upload_id)
        if not row.blob:
            stored = _stored(service, row)
            if stored != row.size:
                raise ApiError(
                    "OFFSET_MISMATCH", f"{stored} of {row.size} bytes are here", headers=_headers(row, stored)
                )
            row = _complete(service, caller, row)
    return schemas.Blob(blob=f"sha256:{row.blob}", size=row.size)


@router.delete("/{upload_id}", status_code=204)
def terminate(upload_id: str, service: ServiceDep, caller: BlobWriter) -> Response:
    """Forget the upload; a finished one's blob stays."""
    row = _find(service, caller, upload_id)
    with contextlib.nullcontext() if row.blob else _writer(service, row):
        _discard(service, row)
    return Response(status_code=204, headers={"Tus-Resumable": TUS_VERSION})


def _find(service: Service, caller: Caller, upload_id: str) -> Row[Any]:
    row = service.read_now(lambda c: contents.find_upload(c, caller.tenant, upload_id))
    if row is None:
        raise not_found("upload", upload_id)
    if row.expired and not row.blob:
        raise ApiError("GONE", "the upload has expired; announce the file again")
    return row


@contextlib.contextmanager
def _writer(service: Service, row: Row[Any]) -> Iterator[int]:
    """The upload's file, ours alone; -1 when another request has just made a blob of it: read the row again."""
    with contextlib.ExitStack() as held:
        descriptor = -1
        with contextlib.suppress(FileNotFoundError):
            descriptor = held.enter_context(exclusive(service.settings.uploads_dir / row.id))
        yield descriptor


@contextlib.contextmanager
def _present() -> Iterator[None]:
    """A file that is not there any more is GONE: its upload has expired, or its folder was emptied."""
    try:
        yield
    except FileNotFoundError as error:
        raise ApiError("GONE", "the upload's bytes are gone; announce the file again") from error


def _stored(service: Service, row: Row[Any]) -> int:
    with _present():
        return durable_size(service.settings.uploads_dir / row.id)


async def _receive(
    service: Service, request: Request, row: Row[Any], descriptor: int, offset: int, checksum: bytes | None
) -> int:
    intake = Intake(service, descriptor, offset, row.size, coming=row.size - offset)
    intake.hash = service.hashes.take(row.id, offset)
    intake.chunk_hash = hashlib.sha256() if checksum is not None else None
    try:
        await intake.receive(request.stream())
    except ClientDisconnect as error:
        raise ApiError("MALFORMED", f"the connection ended at byte {intake.offset}") from error
    finally:
        service.hashes.keep(row.id, intake.offset, intake.hash)
    if intake.chunk_hash is not None and intake.chunk_hash.digest() != checksum:
        await anyio.to_thread.run_sync(cut, descriptor, offset)
        raise ApiError("CHECKSUM_MISMATCH", f"the {intake.offset - offset} bytes do not have the announced SHA-256")
    return intake.offset


def _complete(service: Service, caller: Caller, row: Row[Any]) -> Row[Any]:
    """Turn a full upload into a blob.  Killed anywhere, the next call starts over: the file goes last."""
    path = service.settings.uploads_dir / row.id
    running = service.hashes.take(row.id, row.size) if row.size else hashlib.sha256()
    with _present():
        digest = running.hexdigest() if running is not None else file_digest(path)
        if row.sha256 and row.sha256 != digest:
            _discard(service, row)
            raise ApiError("DIGEST_MISMATCH", f"the bytes have SHA-256 {digest}, announced was {row.sha256}")
        take_in(service, caller, path, row.size, digest, announced=True)
    with service.database.write() as connection:
        done = connection.execute(
            update(uploads).where(uploads.c.id == row.id).values(blob=digest).returning(*uploads.c)
        ).one_or_none()
    path.unlink(missing_ok=True)
    if done is None:
        raise ApiError("GONE", "the upload expired while its last bytes came; announce the file again")
    return done


def _discard(service: Service, row: Row[Any]) -> None:
    with service.database.write() as connection:
        connection.execute(delete(uploads).where(uploads.c.id == row.id))
    (service.settings.uploads_dir / row.id).unlink(missing_ok=True)


def _show(row: Row[Any], offset: int) -> schemas.Upload:
    return schemas.Upload(
        id=row.id,
        size=row.size,
        offset=offset,
        filename=row.filename,
        blob=f"sha256:{row.blob}" if row.blob else None,
        expires_at=certain_moment(row.expires_at),
    )


def _headers(row: Row[Any], offset: int) -> dict[str, str]:
    headers = {
        "Tus-Resumable": TUS_VERSION,
        "Upload-Offset": str(offset),
        "Upload-Length": str(row.size),
        "Upload-Complete": "?1" if row.blob else "?0",
        "Upload-Expires": _http_date(certain_moment(row.expires_at).isoformat()),
    }
    return headers | ({"Content-Location": f"/v1/blobs/sha256:{row.blob}"} if row.blob else {})


def _http_date(text: str) -> str:
    return email.utils.format_datetime(dt.datetime.fromisoformat(text).astimezone(dt.UTC), usegmt=True)


def _check_tus(request: Request) -> None:
    version = request.headers.get("tus-resumable")
    if version is not None and version != TUS_VERSION:
        raise ApiError(
            "PRECONDITION_FAILED", f"tus {version[:20]!r} is not spoken here", headers={"Tus-Version": "1.0.0"}
        )


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind not in PATCH_TYPES:
        raise ApiError("UNSUPPORTED_MEDIA_TYPE", f"the body of a PATCH is {' or '.join(PATCH_TYPES)}")


def _offset(request: Request) -> int:
    text = request.headers.get("upload-offset", "")
    if not re.fullmatch(r"\d{1,18}", text):
        raise ApiError("MALFORMED", "Upload-Offset is missing or no number")
    return int(text)


def _expect_offset(given: int, stored: int) -> None:
    if given != stored:
        raise ApiError(
            "OFFSET_MISMATCH", f"the upload goes on at byte {stored}, not {given}",
            headers={"Upload-Offset": str(stored)},
            limit=stored, actual=given,
        )  # fmt: skip


def _checksum(headers: Mapping[str, str]) -> bytes | None:
    """The SHA-256 announced for this chunk, by tus' header or RFC 9530's."""
    text = headers.get("upload-checksum", "")
    if text:
        algorithm, _, value = text.partition(" ")
    elif match := re.search(r"sha-256=:([A-Za-z0-9+/=]*):", headers.get("content-digest", "")):
        algorithm, value = "sha256", match[1]
    else:
        return None
    try:
        digest = base64.b64decode(value, validate=True)
    except ValueError:
        digest = b""
    if algorithm != "sha256" or len(digest) != 32:
        raise ApiError("MALFORMED", "the checksum is no base64 SHA-256")
    return digest


def _wanted(headers: Mapping[str, str], body: bytes) -> schemas.UploadRequest:
    """What is announced: by JSON, or by tus' headers."""
    try:
        if headers.get("content-type", "").startswith("application/json"):
            return schemas.UploadRequest.model_validate_json(body)
        if "upload-length" not in headers:
            raise ApiError("MALFORMED", "announce the file as JSON, or with Upload-Length")
        given = _metadata(headers.get("upload-metadata", ""))
        digest = given.get("sha256", "")
        return schemas.UploadRequest.model_validate_strings(
            {
                "size": headers["upload-length"],
                "filename": given.get("filename", "")[:255],
                **({"sha256": digest} if _DIGEST.match(digest) else {}),
            }
        )
    except ValidationError as error:
        found = field_errors(error.errors(include_url=False), list(schemas.UploadRequest.model_fields))
        raise ApiError("INVALID_REQUEST", "the announcement does not fit the schema", errors=found) from error


def _metadata(text: str) -> dict[str, str]:
    found = {}
    for pair in text.split(","):
        name, _, value = pair.strip().partition(" ")
        try:
            found[name] = base64.b64decode(value, validate=True).decode(errors="replace")
        except ValueError as error:
            raise ApiError("MALFORMED", "Upload-Metadata is no list of names and base64 values") from error
    return found
