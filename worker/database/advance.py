"""The one statement through which a job row changes.

Every change is an UPDATE with its whole precondition in the WHERE; it takes the next event number with it and
writes that event in the same transaction.  So a job's events have no gaps, and no state was ever reached
without one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, select, update

from worker.contract import TERMINAL, State
from worker.database.engine import now
from worker.database.tables import deliveries, events, jobs, webhooks


def advance(
    connection: Connection,
    where: ColumnElement[bool],
    values: Mapping[str, Any],
    kind: str,
    body: Mapping[str, Any],
) -> Row[Any] | None:
    """Change the job that ``where`` names and record the event; None when no row meets the condition."""
    statement = update(jobs).where(where).values(last_event=jobs.c.last_event + 1, **values).returning(*jobs.c)
    row = connection.execute(statement).one_or_none()
    if row is not None:
        record_event(connection, row, kind, body)
    return row


def record_event(connection: Connection, row: Row[Any], kind: str, body: Mapping[str, Any]) -> None:
    """Write the event that belongs to the row's ``last_event``; a change of state also goes to webhooks."""
    connection.execute(
        insert(events).values(job_id=row.id, number=row.last_event, kind=kind, body=dict(body), at=now())
    )
    if kind == "state" and row.state in (*TERMINAL, State.RUNNING):
        _announce(connection, row, body)


def _announce(connection: Connection, row: Row[Any], body: Mapping[str, Any]) -> None:
    name = f"job.{'started' if row.state == State.RUNNING else str(row.state).lower()}"
    found = connection.execute(select(webhooks).where(webhooks.c.tenant == row.tenant)).all()
    receivers = [(one.id, one.url, one.secret, one.events) for one in found]
    if row.webhook:
        own = row.webhook
        receivers.append(("", own["url"], own["secret"], own["events"]))
    payload = {"type": name, "job_id": row.id, "event": row.last_event, "labels": row.labels, **body}
    for webhook_id, url, secret, wanted in receivers:
        if wanted and name not in wanted:
            continue
        connection.execute(
            insert(deliveries).values(
                id=f"dlv_{secrets.token_hex(12)}",
                tenant=row.tenant,
                webhook_id=webhook_id,
                job_id=row.id,
                event=name,
                url=url,
                secret=secret,
                body=json.dumps(payload, separators=(",", ":")),
                state="pending",
                attempts=0,
                next_at=now(),
                error="",
                created_at=now(),
            )
        )
