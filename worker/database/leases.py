"""What a worker may do to a job: claim it, prove it is alive, say how far it is, and end its run.

Everything after the claim carries the fence in its WHERE.  A worker that was stopped, or cut off, for longer
than its lease finds no row and has lost: it can neither change the job nor publish over its successor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, and_, case, delete, insert, or_, select, update

from worker.contract import Artifact, Claim, JobError, JobSpec, Progress, State, Usage
from worker.database.advance import advance
from worker.database.engine import now
from worker.database.tables import artifacts, attempts, job_blobs, jobs, outbox

MAX_EVENT_MESSAGES: Final = 200
_RUNNING: Final = (State.RUNNING, State.CANCELING)


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker learns when it renews its lease."""

    held: bool
    cancel_requested: bool


def claim(connection: Connection, job_id: str, worker: str, lease_s: float, max_attempts: int) -> Claim | None:
    """Take the job when it waits, or when its worker has been silent for too long; None: a duplicate call."""
    lost = and_(jobs.c.state == State.RUNNING, jobs.c.lease_until < now())
    free = or_(and_(jobs.c.state == State.QUEUED, jobs.c.not_before <= now()), lost)
    row = advance(
        connection,
        and_(jobs.c.id == job_id, free, jobs.c.attempts < max_attempts),
        {
            "state": State.RUNNING,
            "fence": jobs.c.fence + 1,
            "attempts": jobs.c.attempts + 1,
            "worker": worker,
            "lease_until": now() + lease_s,
            "started_at": case((jobs.c.started_at.is_(None), now()), else_=jobs.c.started_at),
            "stage": "fetch",
            "done": 0,
            "total": 0,
        },
        "state",
        {"state": State.RUNNING},
    )
    if row is None:
        return None
    close_attempts(connection, job_id, "WORKER_LOST")
    connection.execute(
        insert(attempts).values(
            job_id=job_id, fence=row.fence, worker=worker, outcome="", stage="", node="", signal=0, peak_rss=0,
            log="", started_at=now(),
        )
    )  # fmt: skip
    spec = JobSpec.from_json(row.spec)
    return Claim(
        job_id, row.tenant, row.fence, row.attempts, worker, spec, float(row.deadline_s), bool(row.cancel_requested)
    )


def close_attempts(connection: Connection, job_id: str, outcome: str) -> None:
    """Give every attempt that never reported an end the outcome ``outcome``."""
    stage = select(jobs.c.stage).where(jobs.c.id == job_id).scalar_subquery()
    connection.execute(
        update(attempts)
        .where(attempts.c.job_id == job_id, attempts.c.finished_at.is_(None))
        .values(outcome=outcome, stage=stage, finished_at=now())
    )


def _mine(claim: Claim) -> ColumnElement[bool]:
    return and_(jobs.c.id == claim.job_id, jobs.c.fence == claim.fence, jobs.c.state.in_(_RUNNING))


def extend(connection: Connection, claim: Claim, lease_s: float) -> Beat:
    """Renew the lease; a beat of a lease that is no longer ours says so."""
    statement = update(jobs).where(_mine(claim)).values(lease_until=now() + lease_s).returning(jobs.c.cancel_requested)
    row = connection.execute(statement).one_or_none()
    return Beat(row is not None, bool(row is not None and row.cancel_requested))


def look(connection: Connection, claim: Claim) -> Beat:
    """The same as a beat, without renewing anything."""
    row = connection.execute(select(jobs.c.cancel_requested).where(_mine(claim))).one_or_none()
    return Beat(row is not None, bool(row is not None and row.cancel_requested))


def report(connection: Connection, claim: Claim, progress: Sequence[Progress], messages: Sequence[str]) -> bool:
    """Write progress and warnings as events; False when the job is no longer ours."""
    for one in progress:
        values = {"stage": one.stage, "done": one.done, "total": one.total}
        if advance(connection, _mine(claim), values, "progress", values) is None:
            return False
    return all(
        advance(connection, _mine(claim), {}, "warning", {"message": text[:2000]}) is not None
        for text in messages[:MAX_EVENT_MESSAGES]
    )


def succeed(
    connection: Connection,
    claim: Claim,
    verdict: str,
    summary: Mapping[str, Any],
    published: Sequence[Artifact],
    usage: Usage,
    keep: tuple[float, float],
) -> bool:
    """Commit a run whose files are in place; False when another worker has the job, or it is cancelled.

    ``keep`` is how long files and record are kept.
    """
    row = advance(
        connection,
        and_(_mine(claim), jobs.c.state == State.RUNNING),
        {
            "state": State.SUCCEEDED,
            "verdict": verdict,
            "summary": dict(summary),
            "published_fence": claim.fence,
            "artifacts_until": now() + keep[0],
            **_ended(keep[1]),
        },
        "state",
        {"state": State.SUCCEEDED, "verdict": verdict},
    )
    if row is None:
        return False
    for one in published:
        connection.execute(
            insert(artifacts).values(
                job_id=claim.job_id, name=one.name, role=one.role, media_type=one.media_type, size=one.size,
                sha256=one.sha256,
            )
        )  # fmt: skip
    _close(connection, claim, "SUCCEEDED", "publish", "", usage)
    _drop_references(connection, claim.job_id)
    return True


def fail(
    connection: Connection, claim: Claim, error: JobError, usage: Usage, keep_s: float, retry_in_s: float | None
) -> bool:
    """End an attempt that failed: the job waits for its next one after ``retry_in_s``, or fails for good (None).

    A job whose cancel was requested meanwhile is cancelled instead.  False when the job is no longer ours.
    """
    _close(connection, claim, error.code, error.stage, error.node, usage)
    if cancel(connection, claim, usage, keep_s):
        return True
    if retry_in_s is not None:
        return _back_to_queue(connection, claim, retry_in_s, {"error": error.to_json()}, {"code": error.code})
    row = advance(
        connection,
        _mine(claim),
        {"state": State.FAILED, "error": error.to_json(), **_ended(keep_s)},
        "state",
        {"state": State.FAILED, "error": error.to_json()},
    )
    if row is not None:
        _drop_references(connection, claim.job_id)
    return row is not None


def cancel(connection: Connection, claim: Claim, usage: Usage, keep_s: float) -> bool:
    """End a run whose cancel was requested; False when nobody asked, or the job is no longer ours."""
    row = advance(
        connection,
        and_(_mine(claim), jobs.c.cancel_requested.is_(True)),
        {"state": State.CANCELED, **_ended(keep_s)},
        "state",
        {"state": State.CANCELED},
    )
    if row is None:
        return False
    _close(connection, claim, "CANCELED", row.stage, "", usage)
    _drop_references(connection, claim.job_id)
    return True


def release(connection: Connection, claim: Claim) -> bool:
    """Give a job back unharmed because this worker is stopping; the attempt does not count."""
    _close(connection, claim, "RELEASED", "", "", Usage())
    return _back_to_queue(connection, claim, 0.0, {"attempts": jobs.c.attempts - 1}, {"reason": "worker stopping"})


def _back_to_queue(
    connection: Connection, claim: Claim, delay_s: float, values: Mapping[str, Any], body: Mapping[str, Any]
) -> bool:
    row = advance(
        connection,
        and_(_mine(claim), jobs.c.cancel_requested.is_(False)),
        {
            "state": State.QUEUED, "lease_until": None, "worker": "", "stage": "", "done": 0, "total": 0,
            "not_before": now() + delay_s, "announced_at": now() if delay_s == 0 else 0.0, **values,
        },
        "state",
        {"state": State.QUEUED, **body},
    )  # fmt: skip
    if row is not None and delay_s == 0:
        connection.execute(insert(outbox).values(job_id=row.id, device=row.device, created_at=now()))
    return row is not None


def _close(connection: Connection, claim: Claim, outcome: str, stage: str, node: str, usage: Usage) -> None:
    connection.execute(
        update(attempts)
        .where(
            attempts.c.job_id == claim.job_id, attempts.c.fence == claim.fence, attempts.c.finished_at.is_(None)
        )
        .values(
            outcome=outcome, stage=stage, node=_storable(node)[:500], signal=usage.signal,
            exit_status=usage.exit_status, peak_rss=usage.peak_rss, log=usage.log, finished_at=now(),
        )
    )  # fmt: skip


def _storable(text: str) -> str:
    """The text without what a database has no place for; names inside a model may be anything."""
    return text.encode(errors="replace").decode().replace("\0", "")


def _ended(keep_s: float) -> dict[str, Any]:
    return {"lease_until": None, "finished_at": now(), "expires_at": now() + keep_s}


def _drop_references(connection: Connection, job_id: str) -> None:
    connection.execute(delete(job_blobs).where(job_blobs.c.job_id == job_id))
