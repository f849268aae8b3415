"""API keys, for who has the scope ``admin``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection, Row, select, update

from api import schemas
from api.auth import Admin, create_key
from api.errors import not_found
from api.idempotency import Answer, IdempotencyKey, once
from api.service import ServiceDep
from api.views import certain_moment, moment
from worker.database.engine import now
from worker.database.tables import keys

router = APIRouter(prefix="/v1/keys", tags=["keys"])


def _show(row: Row[Any], key: str | None = None) -> schemas.Key:
    return schemas.Key(
        id=row.id, name=row.name, tenant=row.tenant, scopes=row.scopes, created_at=certain_moment(row.created_at),
        expires_at=moment(row.expires_at), last_used_at=moment(row.last_used_at),
        revoked_at=moment(row.revoked_at), key=key,
    )  # fmt: skip


@router.post("", status_code=201, response_model=schemas.Key)
def make_key(
    body: schemas.KeyRequest,
    service: ServiceDep,
    caller: Admin,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Make a key; it is shown in this answer and never again."""
    whole = ""

    def act(connection: Connection) -> Answer:
        nonlocal whole
        row, whole = create_key(connection, body)
        return Answer(201, _show(row).model_dump(mode="json"), f"/v1/keys/{row.id}")

    answer = once(service, caller, idempotency_key, ["POST", "/v1/keys", body.model_dump()], act)
    shown = {**answer.body, "key": whole or None}  # a repeated request does not show it again
    return Answer(answer.status, shown, answer.location, answer.replayed).response(Cache_Control="no-store")


@router.get("", response_model=schemas.KeyList)
def list_keys(service: ServiceDep, _: Admin) -> schemas.KeyList:
    rows = service.read_now(lambda c: c.execute(select(keys).order_by(keys.c.created_at).limit(1000)).all())
    return schemas.KeyList(items=[_show(row) for row in rows])


@router.delete("/{key_id}", status_code=204)
def revoke_key(key_id: str, service: ServiceDep, _: Admin) -> Response:
    """Revoke a key: after a few seconds no process takes it any more."""
    statement = update(keys).where(keys.c.id == key_id, keys.c.revoked_at.is_(None)).values(revoked_at=now())
    if service.write_now(lambda c: c.execute(statement).rowcount) == 0:
        raise not_found("key", key_id)
    service.verified.clear()
    return Response(status_code=204)
