"""Models: manifests of blobs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection, delete, select

from api import schemas
from api.auth import ModelReader, ModelWriter
from api.errors import ApiError, not_found
from api.idempotency import Answer, IdempotencyKey, once
from api.manifest import check_model, check_paths, format_of
from api.pages import PageSize, PageToken, newest_first
from api.service import Service, ServiceDep
from api.views import show_model
from worker.contract import ModelFile
from worker.database import contents
from worker.database.tables import models

router = APIRouter(prefix="/v1/models", tags=["models"])
HEAD_BYTES = 16


@router.post("", status_code=201, response_model=schemas.Model)
def create_model(
    body: schemas.ModelRequest,
    service: ServiceDep,
    caller: ModelWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make a model of blobs that were sent before.  Nothing is unpacked and nothing is parsed here."""

    def act(connection: Connection) -> Answer:
        row = add_model(service, connection, caller.tenant, body)
        shown = show_model(connection, row, service.settings)
        return Answer(201, shown.model_dump(mode="json"), f"/v1/models/{row.id}")

    return once(service, caller, idempotency_key, ["POST", "/v1/models", body.model_dump()], act).response()


def add_model(service: Service, connection: Connection, tenant: str, body: schemas.ModelRequest) -> Any:
    """Check the manifest and write it.

    Raises:
        ApiError: INVALID_REQUEST with every finding; UNSUPPORTED_MEDIA_TYPE, UNSAFE_CONTENT, TOO_LARGE.
    """
    check_paths([one.path for one in body.files], body.entry)
    kind = format_of(body.entry, body.format)
    blobs = {one.blob: contents.held_blob(connection, tenant, one.blob[7:]) for one in body.files}
    missing = [
        {"pointer": f"/files/{number}/blob", "code": "NO_SUCH_BLOB", "message": "send this content first"}
        for number, one in enumerate(body.files)
        if blobs[one.blob] is None
    ]
    if missing:
        raise ApiError("INVALID_REQUEST", f"{len(missing)} of the blobs are not here", errors=missing)
    files = tuple(ModelFile(one.path, one.blob[7:], _size(blobs[one.blob])) for one in body.files)
    entry = next(one for one in files if one.path == body.entry)
    check_model(entry, kind, lambda digest: read_head(service, connection, digest))
    return contents.insert_model(connection, tenant, body.entry, kind, files)


def _size(row: Any) -> int:
    return int(row.size)


def read_head(service: Service, connection: Connection, digest: str) -> bytes:
    """The first bytes of a blob."""
    row = contents.find_blob(connection, digest)
    assert row is not None
    with service.storage.open(row.place) as file:
        return file.read(HEAD_BYTES)


@router.get("", response_model=schemas.ModelPage)
def list_models(
    service: ServiceDep,
    caller: ModelReader,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """This tenant's models, newest first."""

    def query(connection: Connection) -> dict[str, Any]:
        mine = select(models).where(models.c.tenant == caller.tenant)
        rows, token = newest_first(connection, mine, models, page_size, page_token)
        items = [show_model(connection, row, service.settings) for row in rows]
        return {"items": items, "next_page_token": token}

    return service.read_now(query)


@router.get("/{model_id}", response_model=schemas.Model)
def read_model(model_id: str, service: ServiceDep, caller: ModelReader) -> schemas.Model:
    def query(connection: Connection) -> schemas.Model:
        row = contents.find_model(connection, caller.tenant, model_id)
        if row is None:
            raise not_found("model", model_id)
        return show_model(connection, row, service.settings)

    return service.read_now(query)


@router.delete("/{model_id}", status_code=204)
def delete_model(model_id: str, service: ServiceDep, caller: ModelWriter) -> Response:
    """Forget the model; its blobs go when nothing else refers to them."""

    def change(connection: Connection) -> None:
        if contents.find_model(connection, caller.tenant, model_id) is None:
            raise not_found("model", model_id)
        if contents.model_in_use(connection, model_id):
            raise ApiError("RESOURCE_IN_USE", "an open job uses this model")
        connection.execute(delete(models).where(models.c.id == model_id))

    service.write_now(change)
    return Response(status_code=204)
