"""What a caller may do to a job: submit, cancel, read."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, func, insert, select, update

from worker.contract import OPEN, JobSpec, State
from worker.database.advance import advance, record_event
from worker.database.engine import now
from worker.database.tables import attempts, events, job_blobs, jobs, outbox


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job as its caller describes it."""

    tenant: str
    name: str
    device: str
    spec: JobSpec
    deadline_s: float
    labels: Mapping[str, str]
    webhook: Mapping[str, Any] | None = None
    retry_of: str | None = None
    pinned: bool = False


def new_id(prefix: str) -> str:
    """An id nobody can guess: 96 random bits behind a readable prefix."""
    return f"{prefix}_{secrets.token_hex(12)}"


def spec_digest(spec: JobSpec) -> str:
    """Digest of everything that determines the result: contents and options, not ids."""
    facts = {
        "entry": spec.entry,
        "files": sorted((one.path, one.sha256) for one in spec.files),
        "batches": [one.sha256 or one.generator for one in spec.batches],
        "options": spec.options,
        "option_files": {name: one.sha256 for name, one in spec.option_files.items()},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def insert_job(connection: Connection, new: NewJob) -> Row[Any]:
    """Write the job, its first event and the note to announce it, all in the caller's transaction."""
    stored = asdict(new.spec)
    row = connection.execute(
        insert(jobs)
        .values(
            id=new_id("job"), tenant=new.tenant, name=new.name, state=State.QUEUED, device=new.device, spec=stored,
            spec_sha256=spec_digest(new.spec), labels=dict(new.labels), webhook=new.webhook,
            model_id=new.spec.model_id, retry_of=new.retry_of, pinned=new.pinned, deadline_s=new.deadline_s, stage="",
            done=0, total=0, fence=0, attempts=0, worker="", not_before=now(), announced_at=now(),
            cancel_requested=False, last_event=1, created_at=now(),
        )
        .returning(*jobs.c)
    ).one()  # fmt: skip
    record_event(connection, row, "state", {"state": State.QUEUED})
    for digest in _contents(new.spec):
        connection.execute(insert(job_blobs).values(job_id=row.id, sha256=digest))
    connection.execute(insert(outbox).values(job_id=row.id, device=row.device, created_at=now()))
    return row


def _contents(spec: JobSpec) -> list[str]:
    found = {one.sha256 for one in (*spec.files, *spec.option_files.values())}
    found |= {one.sha256 for one in spec.batches if one.sha256}
    return sorted(found)


def request_cancel(connection: Connection, tenant: str, job_id: str, keep_s: float) -> Row[Any] | None:
    """Cancel a waiting job at once, ask a running one to stop; the row afterwards, None when there is none.

    A job that has already ended is returned as it is.
    """
    mine = and_(jobs.c.id == job_id, jobs.c.tenant == tenant)
    waiting = advance(
        connection,
        and_(mine, jobs.c.state == State.QUEUED),
        {"state": State.CANCELED, "cancel_requested": True, "finished_at": now(), "expires_at": now() + keep_s},
        "state",
        {"state": State.CANCELED},
    )
    if waiting is not None:
        return waiting
    running = advance(
        connection,
        and_(mine, jobs.c.state == State.RUNNING),
        {"state": State.CANCELING, "cancel_requested": True},
        "state",
        {"state": State.CANCELING},
    )
    return running if running is not None else find_job(connection, tenant, job_id)


def find_job(connection: Connection, tenant: str, job_id: str) -> Row[Any] | None:
    """The tenant's job; another tenant's job does not exist."""
    return connection.execute(select(jobs).where(jobs.c.id == job_id, jobs.c.tenant == tenant)).one_or_none()


def find_success(connection: Connection, tenant: str, digest: str) -> Row[Any] | None:
    """The tenant's latest job with the same inputs and options whose files are still there."""
    return connection.execute(
        select(jobs)
        .where(
            jobs.c.spec_sha256 == digest, jobs.c.tenant == tenant, jobs.c.state == State.SUCCEEDED,
            jobs.c.artifacts_until > now(),
        )
        .order_by(jobs.c.created_at.desc())
        .limit(1)
    ).one_or_none()  # fmt: skip


def count_open(connection: Connection, tenant: str) -> int:
    query = select(func.count()).select_from(jobs).where(jobs.c.tenant == tenant, jobs.c.state.in_(OPEN))
    return int(connection.execute(query).scalar_one())


def attempts_of(connection: Connection, job_id: str) -> list[Row[Any]]:
    query = select(attempts).where(attempts.c.job_id == job_id).order_by(attempts.c.fence)
    return list(connection.execute(query))


def events_after(connection: Connection, job_id: str, number: int, limit: int = 1000) -> list[Row[Any]]:
    query = (
        select(events).where(events.c.job_id == job_id, events.c.number > number).order_by(events.c.number).limit(limit)
    )
    return list(connection.execute(query))


def pin(connection: Connection, tenant: str, job_id: str, pinned: bool) -> Row[Any] | None:
    """A pinned job, its files and its record stay until it is unpinned."""
    statement = update(jobs).where(jobs.c.id == job_id, jobs.c.tenant == tenant).values(pinned=pinned)
    return connection.execute(statement.returning(*jobs.c)).one_or_none()


def state_of(connection: Connection, job_id: str) -> str | None:
    """The job's state; None when there is no such job."""
    return connection.execute(select(jobs.c.state).where(jobs.c.id == job_id)).scalar_one_or_none()
