"""Receivers of news, and what was delivered to them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import Connection, Row, delete, insert, select, update

from api import schemas
from api.auth import HookWriter
from api.errors import ApiError, not_found
from api.idempotency import Answer, IdempotencyKey, once
from api.jobs import new_secret
from api.pages import PageSize, PageToken, newest_first, page
from api.service import Caller, ServiceDep
from api.views import certain_moment, moment
from worker.database.engine import now
from worker.database.submit import new_id
from worker.database.tables import deliveries, webhooks
from worker.deliveries import check_receiver

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


def _show(row: Row[Any], *, secret: bool = False) -> schemas.Webhook:
    return schemas.Webhook(
        id=row.id,
        url=row.url,
        events=row.events,
        secret=row.secret if secret else None,
        created_at=certain_moment(row.created_at),
    )


def _show_delivery(row: Row[Any]) -> schemas.Delivery:
    return schemas.Delivery(
        id=row.id, job_id=row.job_id, event=row.event, state=row.state, attempts=row.attempts, status=row.status,
        error=row.error, next_at=certain_moment(row.next_at), created_at=certain_moment(row.created_at),
        finished_at=moment(row.finished_at),
    )  # fmt: skip


@router.post("", status_code=201, response_model=schemas.Webhook)
def create_webhook(
    body: schemas.WebhookRequest,
    service: ServiceDep,
    caller: HookWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Register a receiver.  Deliveries are signed with the secret in this answer (Standard Webhooks)."""
    check_receiver(body.url, service.settings.webhook_networks)

    def act(connection: Connection) -> Answer:
        row = connection.execute(
            insert(webhooks)
            .values(id=new_id("whk"), tenant=caller.tenant, url=body.url, secret=new_secret(),
                    events=list(body.events), created_at=now())
            .returning(*webhooks.c)
        ).one()  # fmt: skip
        return Answer(201, _show(row, secret=True).model_dump(mode="json"), f"/v1/webhooks/{row.id}")

    return once(service, caller, idempotency_key, ["POST", "/v1/webhooks", body.model_dump()], act).response()


@router.get("", response_model=schemas.WebhookPage)
def list_webhooks(
    service: ServiceDep,
    caller: HookWriter,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> dict[str, Any]:
    mine = select(webhooks).where(webhooks.c.tenant == caller.tenant)
    rows, token = service.read_now(lambda c: newest_first(c, mine, webhooks, page_size, page_token))
    return page(rows, token, _show)


def _find(connection: Connection, caller: Caller, webhook_id: str) -> Row[Any]:
    query = select(webhooks).where(webhooks.c.id == webhook_id, webhooks.c.tenant == caller.tenant)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise not_found("webhook", webhook_id)
    return row


@router.get("/{webhook_id}", response_model=schemas.Webhook)
def read_webhook(webhook_id: str, service: ServiceDep, caller: HookWriter) -> schemas.Webhook:
    return _show(service.read_now(lambda c: _find(c, caller, webhook_id)))


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: str, service: ServiceDep, caller: HookWriter) -> Response:
    """Forget the receiver and what was still to be delivered to it."""

    def change(connection: Connection) -> None:
        _find(connection, caller, webhook_id)
        connection.execute(delete(deliveries).where(deliveries.c.webhook_id == webhook_id))
        connection.execute(delete(webhooks).where(webhooks.c.id == webhook_id))

    service.write_now(change)
    return Response(status_code=204)


@router.get("/{webhook_id}/deliveries", response_model=schemas.DeliveryPage)
def list_deliveries(
    webhook_id: str,
    service: ServiceDep,
    caller: HookWriter,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> dict[str, Any]:
    """What was sent, what came back, and when it is tried again."""

    def query(connection: Connection) -> dict[str, Any]:
        _find(connection, caller, webhook_id)
        mine = select(deliveries).where(deliveries.c.webhook_id == webhook_id)
        rows, token = newest_first(connection, mine, deliveries, page_size, page_token)
        return page(rows, token, _show_delivery)

    return service.read_now(query)


@router.post("/{webhook_id}/deliveries/{delivery_id}/redeliver", status_code=202, response_model=schemas.Delivery)
def redeliver(
    webhook_id: str,
    delivery_id: str,
    service: ServiceDep,
    caller: HookWriter,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Send it once more, now."""

    def act(connection: Connection) -> Answer:
        _find(connection, caller, webhook_id)
        row = connection.execute(
            update(deliveries)
            .where(deliveries.c.id == delivery_id, deliveries.c.webhook_id == webhook_id)
            .values(state="pending", next_at=now(), finished_at=None, attempts=0)
            .returning(*deliveries.c)
        ).one_or_none()
        if row is None:
            raise ApiError("NOT_FOUND", f"there is no delivery {delivery_id[:100]!r}")
        return Answer(202, _show_delivery(row).model_dump(mode="json"))

    asked = ["POST", "redeliver", webhook_id, delivery_id]
    return once(service, caller, idempotency_key, asked, act).response()
