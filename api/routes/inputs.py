"""Sample batches: files, or recipes the worker follows."""

from __future__ import annotations

import math
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection, delete, select

from api import schemas
from api.auth import ModelReader, ModelWriter
from api.errors import ApiError, not_found
from api.idempotency import Answer, IdempotencyKey, once
from api.manifest import check_batch
from api.pages import PageSize, PageToken, newest_first
from api.routes.models import read_head
from api.service import Service, ServiceDep
from api.views import show_batch
from worker.database import contents
from worker.database.tables import batches
from worker.recipes import MAX_BYTES

router = APIRouter(prefix="/v1/inputs", tags=["inputs"])
_ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "int8": 1, "uint8": 1, "bool": 1}


@router.post("", status_code=201, response_model=schemas.Batch)
def create_input(
    body: schemas.InputRequest,
    service: ServiceDep,
    caller: ModelWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make a batch of a blob (`.npz`, `.npy`, `.safetensors`) or of a recipe."""

    def act(connection: Connection) -> Answer:
        row = add_batch(service, connection, caller.tenant, body)
        return Answer(201, show_batch(row, service.settings).model_dump(mode="json"), f"/v1/inputs/{row.id}")

    return once(service, caller, idempotency_key, ["POST", "/v1/inputs", body.model_dump()], act).response()


def add_batch(service: Service, connection: Connection, tenant: str, body: schemas.InputRequest) -> Any:
    """Check and write a batch; raises ApiError."""
    if (body.blob is None) == (body.generator is None):
        raise ApiError("INVALID_REQUEST", "a batch has either `blob` or `generator`")
    if body.generator is not None:
        size = sum(math.prod(one.shape) * _ITEM_BYTES[one.dtype] for one in body.generator.tensors.values())
        if size > MAX_BYTES:
            raise ApiError(
                "TOO_LARGE", f"the recipe describes {size} bytes; send a file instead", limit=MAX_BYTES, actual=size
            )
        name = f"{(body.filename or 'generated').removesuffix('.npz')}.npz"
        return contents.insert_batch(connection, tenant, name, None, size, body.generator.model_dump(mode="json"))
    assert body.blob is not None
    held = contents.held_blob(connection, tenant, body.blob[7:])
    if held is None:
        missing = [{"pointer": "/blob", "code": "NO_SUCH_BLOB", "message": "send this content first"}]
        raise ApiError("INVALID_REQUEST", "the blob is not here", errors=missing)
    name = body.filename or "batch.npz"
    check_batch(name, read_head(service, connection, held.sha256))
    return contents.insert_batch(connection, tenant, name, held.sha256, held.size, None)


@router.get("", response_model=schemas.BatchPage)
def list_inputs(
    service: ServiceDep,
    caller: ModelReader,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """This tenant's batches, newest first."""

    def query(connection: Connection) -> dict[str, Any]:
        mine = select(batches).where(batches.c.tenant == caller.tenant)
        rows, token = newest_first(connection, mine, batches, page_size, page_token)
        return {"items": [show_batch(row, service.settings) for row in rows], "next_page_token": token}

    return service.read_now(query)


@router.get("/{input_id}", response_model=schemas.Batch)
def read_input(input_id: str, service: ServiceDep, caller: ModelReader) -> schemas.Batch:
    row = service.read_now(lambda c: contents.find_batch(c, caller.tenant, input_id))
    if row is None:
        raise not_found("input", input_id)
    return show_batch(row, service.settings)


@router.delete("/{input_id}", status_code=204)
def delete_input(input_id: str, service: ServiceDep, caller: ModelWriter) -> Response:
    """Forget the batch; jobs that were given it keep its content until they end."""

    def change(connection: Connection) -> None:
        if contents.find_batch(connection, caller.tenant, input_id) is None:
            raise not_found("input", input_id)
        connection.execute(delete(batches).where(batches.c.id == input_id))

    service.write_now(change)
    return Response(status_code=204)
