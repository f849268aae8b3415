"""Finding work that fell between the chairs: lost workers, lost messages, jobs nobody started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, delete, insert, select

from worker.contract import JobError, State
from worker.database.advance import advance
from worker.database.engine import now
from worker.database.leases import close_attempts
from worker.database.tables import attempts, job_blobs, jobs, outbox

BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Swept:
    """How many jobs a sweep moved."""

    requeued: int = 0
    announced: int = 0
    failed: int = 0
    canceled: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class SweepRules:
    """The ages and counts a sweep goes by."""

    max_attempts: int
    announce_after_s: float
    queue_ttl_s: float
    keep_s: float
    announce: tuple[str, ...]
    """Device classes whose queue holds fewer messages than jobs wait."""


def sweep(connection: Connection, rules: SweepRules) -> Swept:
    """One round, in the caller's transaction; every step is conditional, so rounds may overlap."""
    counts: dict[str, int] = {}
    silent = select(jobs).where(jobs.c.lease_until < now(), jobs.c.state.in_((State.RUNNING, State.CANCELING)))
    for row in connection.execute(silent.limit(BATCH)).all():
        close_attempts(connection, row.id, "WORKER_LOST")
        kind = _settle_lost(connection, row, rules)
        counts[kind] = counts.get(kind, 0) + 1
    overdue = select(jobs).where(jobs.c.state == State.QUEUED, jobs.c.created_at < now() - rules.queue_ttl_s)
    for row in connection.execute(overdue.limit(BATCH)).all():
        values = {"state": State.EXPIRED, "finished_at": now(), "expires_at": now() + rules.keep_s}
        _end(connection, row, values, {"state": State.EXPIRED})
        counts["expired"] = counts.get("expired", 0) + 1
    return Swept(announced=_announce(connection, rules), **counts)


def _settle_lost(connection: Connection, row: Row[Any], rules: SweepRules) -> str:
    ended = {"lease_until": None, "finished_at": now(), "expires_at": now() + rules.keep_s}
    if row.cancel_requested:
        _end(connection, row, {"state": State.CANCELED, **ended}, {"state": State.CANCELED})
        return "canceled"
    if row.attempts >= rules.max_attempts:
        error = _exhausted(connection, row).to_json()
        _end(connection, row, {"state": State.FAILED, "error": error, **ended}, {"state": State.FAILED, "error": error})
        return "failed"
    values = {"state": State.QUEUED, "lease_until": None, "worker": "", "stage": "", "done": 0, "total": 0,
              "not_before": now(), "announced_at": 0.0}  # fmt: skip
    advance(connection, _unchanged(row), values, "state", {"state": State.QUEUED, "code": "WORKER_LOST"})
    return "requeued"


def _exhausted(connection: Connection, row: Row[Any]) -> JobError:
    query = select(attempts.c.outcome).where(attempts.c.job_id == row.id).order_by(attempts.c.fence)
    outcomes = [one.outcome for one in connection.execute(query)]
    return JobError(
        "ATTEMPTS_EXHAUSTED",
        f"the job was tried {row.attempts} times and no attempt ended: {', '.join(outcomes)}",
        stage=row.stage,
        retryable=True,
    )


def _unchanged(row: Row[Any]) -> Any:
    return and_(jobs.c.id == row.id, jobs.c.fence == row.fence, jobs.c.state == row.state, jobs.c.lease_until < now())


def _end(connection: Connection, row: Row[Any], values: dict[str, Any], body: dict[str, Any]) -> None:
    same = and_(jobs.c.id == row.id, jobs.c.fence == row.fence, jobs.c.state == row.state)
    if advance(connection, same, values, "state", body) is not None:
        connection.execute(delete(job_blobs).where(job_blobs.c.job_id == row.id))


def _announce(connection: Connection, rules: SweepRules) -> int:
    """Announce again every queued job whose message may be lost."""
    forgotten = select(jobs.c.id, jobs.c.device).where(
        jobs.c.state == State.QUEUED,
        jobs.c.device.in_(rules.announce),
        jobs.c.not_before <= now(),
        jobs.c.announced_at < now() - rules.announce_after_s,
    )
    rows = connection.execute(forgotten.order_by(jobs.c.created_at).limit(BATCH)).all()
    for row in rows:
        connection.execute(jobs.update().where(jobs.c.id == row.id).values(announced_at=now()))
        connection.execute(insert(outbox).values(job_id=row.id, device=row.device, created_at=now()))
    return len(rows)
