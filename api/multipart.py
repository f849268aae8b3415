"""``POST /v1/jobs`` for the impatient: model and batch as one small multipart request.

The whole body is capped and held in memory, so that a full temporary folder can never read as a broken request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import AsyncGenerator
from pathlib import PurePosixPath
from typing import Any, Final

import anyio
from fastapi import Request
from pydantic import ValidationError
from sqlalchemy import Connection
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from api import schemas
from api.contents import refuse_if_full, take_in
from api.errors import ApiError, field_errors
from api.idempotency import Answer, once
from api.intake import storage_errors
from api.jobs import submit_job
from api.manifest import FORMATS
from api.routes.inputs import add_batch
from api.routes.models import add_model
from api.service import Caller, Service

_JOB_FIELDS: Final = tuple(schemas.JobRequest.model_fields)
_MAX_FIELDS: Final = 100


class _InMemory(MultiPartParser):
    """Starlette's parser, without its temporary files."""

    spool_max_size = 2**40


async def submit_form(request: Request, service: Service, caller: Caller, key: str | None) -> Answer:
    """Store the files, then make model, batches and job in one transaction.

    Raises:
        ApiError: TOO_LARGE with a hint at uploads; MALFORMED; whatever a model, batch or job can be refused for.
    """
    async with _closing(await _parsed(request, service)) as form:
        return await _submit(form, service, caller, key)


@contextlib.asynccontextmanager
async def _closing(form: FormData) -> AsyncGenerator[FormData, None]:
    try:
        yield form
    finally:
        await form.close()


async def _submit(form: FormData, service: Service, caller: Caller, key: str | None) -> Answer:
    models = [one for one in form.getlist("model") if isinstance(one, UploadFile)]
    samples = [one for one in form.getlist("samples") if isinstance(one, UploadFile)]
    if not models:
        raise ApiError("INVALID_REQUEST", "the form has no file named `model`")
    wanted = _wanted(form)
    await service.read(lambda c: refuse_if_full(service, c, caller.tenant, _bytes(models + samples)))
    sent = [(one.filename or "unnamed", await _store(service, caller, one)) for one in models]
    batches = [(one.filename or "batch.npz", await _store(service, caller, one)) for one in samples]
    manifest = schemas.ModelRequest.model_construct(
        files=[schemas.ManifestFile.model_construct(path=name, blob=blob) for name, blob in sent],
        entry=_entry([name for name, _ in sent]),
        format=None,
    )

    def act(connection: Connection) -> Answer:
        model = add_model(service, connection, caller.tenant, manifest)
        inputs = [_add(service, connection, caller, name, blob) for name, blob in batches]
        body = _job({**wanted, "model": model.id, "inputs": inputs})
        return submit_job(service, connection, caller, body)

    asked = ["POST", "/v1/jobs", sent, batches, wanted]
    return await anyio.to_thread.run_sync(once, service, caller, key, asked, act)


def _bytes(files: list[UploadFile]) -> int:
    return sum(one.size or 0 for one in files)


def _add(service: Service, connection: Connection, caller: Caller, name: str, blob: str) -> str:
    try:
        request = schemas.InputRequest(blob=blob, filename=name)
    except ValidationError as error:
        raise _invalid(error) from error
    return str(add_batch(service, connection, caller.tenant, request).id)


async def _parsed(request: Request, service: Service) -> FormData:
    limit = service.settings.max_multipart_bytes
    if int(request.headers.get("content-length") or 0) > limit:
        raise _too_large(limit)

    async def capped() -> AsyncGenerator[bytes, None]:
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
            yield piece

    parser = _InMemory(
        request.headers, capped(), max_files=service.settings.max_files, max_fields=_MAX_FIELDS,
        max_part_size=service.settings.max_json_bytes,
    )  # fmt: skip
    try:
        return await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        raise ApiError("MALFORMED", f"the form cannot be read: {getattr(error, 'message', None) or error}") from error


def _too_large(limit: int) -> ApiError:
    return ApiError("TOO_LARGE", f"a form may have {limit} bytes; send larger files as uploads", limit=limit)


def _wanted(form: FormData) -> dict[str, Any]:
    """The job's fields: JSON in ``options``, and single options as fields of their own."""
    fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    options = _json(fields.pop("options", "{}"), "options")
    if not isinstance(options, dict):
        raise ApiError("INVALID_REQUEST", "the field `options` is no JSON object")
    wanted: dict[str, Any] = {}
    for name, text in fields.items():
        if name in _JOB_FIELDS:
            wanted[name] = text if name in ("name", "device", "reuse") else _json(text, name)
        else:
            options[name] = _loose(text)
    _job({**wanted, "options": options, "model": "checked below", "inputs": ["checked below"]})
    return {**wanted, "options": options}


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError("INVALID_REQUEST", f"the field {name!r} is no JSON: {error}") from error


def _loose(text: str) -> Any:
    """A number, true, false, a list; anything else is text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _job(fields: dict[str, Any]) -> schemas.JobRequest:
    try:
        return schemas.JobRequest.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error) from error


def _invalid(error: ValidationError) -> ApiError:
    found = field_errors(error.errors(include_url=False))
    return ApiError("INVALID_REQUEST", "the form does not fit the schema", errors=found)


def _entry(names: list[str]) -> str:
    """The model file among the files named ``model``: the only one with a model's suffix."""
    found = [name for name in names if PurePosixPath(name).suffix.lower() in FORMATS]
    return found[0] if len(found) == 1 else names[0]


async def _store(service: Service, caller: Caller, file: UploadFile) -> str:
    content = await file.read()

    def store() -> str:
        path = service.settings.uploads_dir / f"form-{secrets.token_hex(12)}"
        try:
            with storage_errors():
                path.write_bytes(content)
            return "sha256:" + take_in(service, caller, path, len(content), hashlib.sha256(content).hexdigest())
        finally:
            path.unlink(missing_ok=True)

    return await anyio.to_thread.run_sync(store, limiter=service.disk)
