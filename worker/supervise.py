"""One job from claim to commit: fetch, run, publish, and the one statement that makes it count.

Order of the end: files are complete, synced and named first, the row is changed second.  Whoever dies in between
leaves garbage, never a row without files.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from converter.errors import NarrowcastError
from worker.contract import Claim, JobError, Progress, Usage
from worker.database import leases
from worker.database.engine import Database, DatabaseUnavailable
from worker.lease import CancelRequested, Lease, LeaseLost
from worker.problems import problem
from worker.publish import publish
from worker.publish_names import set_name
from worker.runner import Ran, Runner, Stopped, engine_threads
from worker.settings import Settings
from worker.storage import Storage
from worker.workplace import Workplace, fetch, request_of

LOG: Final = logging.getLogger("narrowcast.worker")
_LOG_BYTES: Final = 64 * 2**10
_NO_SPACE: Final = os.strerror(errno.ENOSPC)
_ONCE_MORE_ONLY: Final = ("OUT_OF_MEMORY",)
"""Errors that a third attempt will not change either."""


@dataclass(frozen=True, slots=True)
class Station:
    """What a worker process works with."""

    settings: Settings
    database: Database
    storage: Storage
    runner: Runner
    name: str


class RunFailed(Exception):
    """The attempt ended with an error that belongs on the job."""

    def __init__(self, error: JobError, usage: Usage) -> None:
        super().__init__(error.detail)
        self.error = error
        self.usage = usage


def run_job(station: Station, job_id: str) -> str:
    """Run the job if it is there to be run; says how it went, for the worker's log.

    ``skipped`` (a duplicate delivery), ``succeeded``, ``failed``, ``canceled``, ``fenced`` (another worker has it).
    """
    settings = station.settings
    with station.database.write() as connection:
        claim = leases.claim(connection, job_id, station.name, settings.lease_s, settings.max_attempts)
    if claim is None:
        return "skipped"
    lease = Lease(station.database, claim, settings).start()
    try:
        return _in_workplace(station, claim, lease)
    except LeaseLost:
        return "fenced"
    except CancelRequested:
        return _end(station, lease, lambda c: leases.cancel(c, claim, Usage(), settings.keep_jobs_s), "canceled")
    except RunFailed as failure:
        return _fail(station, lease, failure.error, failure.usage)
    except OSError as error:
        code = "DISK_FULL" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "ENVIRONMENT"
        return _fail(station, lease, JobError(code, str(error), lease.stage, retryable=True), Usage())
    except NarrowcastError as error:
        return _fail(station, lease, _job_error(error, lease.stage), Usage())
    except Exception as error:
        LOG.exception("job %s: attempt %d failed", job_id, claim.attempt)
        detail = f"{type(error).__name__} while the job was at {lease.stage}; the worker's log has the trace"
        return _fail(station, lease, JobError("INTERNAL", detail, lease.stage), Usage())
    except BaseException:  # this worker is told to stop
        _end(station, lease, lambda c: leases.release(c, claim), "released")
        raise
    finally:
        lease.stop()


def _in_workplace(station: Station, claim: Claim, lease: Lease) -> str:
    """The attempt in a folder of its own, which is gone before anything is said about a failure.

    On a full disk the database can only record the failure in the space that the run gives back.
    """
    place = Workplace.of(station.settings.scratch_dir, claim)
    try:
        return _attempt(station, claim, lease, place)
    finally:
        place.clear()


def _attempt(station: Station, claim: Claim, lease: Lease, place: Workplace) -> str:
    settings = station.settings
    lease.note(Progress("fetch"))
    fetch(place, lease, station.database, station.storage)
    request = request_of(place, claim, engine_threads(settings))
    ran = station.runner.run(request, place.run, lease, min(claim.deadline_s, settings.max_deadline_s))
    usage = _usage(ran, place)
    _raise_stop(ran, usage, lease, claim)
    result = _result_of(ran, usage)
    lease.note(Progress("publish"))
    published = publish(place, result, claim, station.storage)
    keep = (settings.keep_artifacts_s, settings.keep_jobs_s)
    done = _end(
        station,
        lease,
        lambda c: leases.succeed(c, claim, published.verdict, published.summary, published.artifacts, usage, keep),
        "succeeded",
    )
    if done == "succeeded":
        return done
    station.storage.delete(set_name(claim.job_id, claim.fence))
    return _end(station, lease, lambda c: leases.cancel(c, claim, usage, settings.keep_jobs_s), "canceled")


def _raise_stop(ran: Ran, usage: Usage, lease: Lease, claim: Claim) -> None:
    """Turn a run the watch ended into what it means."""
    match ran.stopped:
        case Stopped.LOST:
            raise LeaseLost(claim.job_id)
        case Stopped.CANCEL:
            raise CancelRequested(claim.job_id)
        case Stopped.MEMORY:
            text = (
                f"the run held {ran.peak_rss / 2**20:.0f} MiB at stage {ran.stage}; "
                f"one run may hold {ran.memory_limit / 2**20:.0f} MiB"
            )
            raise RunFailed(_error("OUT_OF_MEMORY", text, ran.stage, ran.outcome.node), usage)
        case Stopped.DEADLINE:
            text = f"the run was at stage {ran.stage} after its {claim.deadline_s:g} s and was ended"
            raise RunFailed(_error("DEADLINE_EXCEEDED", text, ran.stage, ran.outcome.node), usage)
        case Stopped.NO:
            lease.check()


def _result_of(ran: Ran, usage: Usage) -> dict[str, object]:
    """The engine's result.

    Raises:
        RunCrashed: the child died without an answer.
        RunFailed: it answered with an error.
    """
    event = ran.outcome.result
    if event is None:
        try:
            ran.outcome.raise_for_crash()
        except NarrowcastError as error:
            raise RunFailed(_job_error(error, ran.stage, ran.outcome.node), usage) from error
        raise RunFailed(_error("RUNTIME_CRASH", "the engine ended without an answer", ran.stage, ""), usage)
    if event["event"] == "error":
        raise RunFailed(_told_error(event, ran), usage)
    return dict(event)


def _told_error(event: Mapping[str, Any], ran: Ran) -> JobError:
    """What the engine says; a full disk is recognised by its text, whichever library met it."""
    text = str(event.get("message", ""))
    if _NO_SPACE in text:
        return _error("DISK_FULL", text, ran.stage, ran.outcome.node)
    row = problem(str(event.get("code")))
    status = 2 if event.get("exit_status") == 2 else 3
    return JobError(row.code, text, ran.stage, ran.outcome.node, row.retryable, status, row.hint)


def _job_error(error: NarrowcastError, stage: str, node: str = "") -> JobError:
    row = problem(error.code)
    return JobError(error.code, str(error), stage, node, error.retryable, error.exit_status, row.hint)


def _error(code: str, detail: str, stage: str, node: str) -> JobError:
    row = problem(code)
    return JobError(code, detail, stage, node, row.retryable, 3, row.hint)


def _usage(ran: Ran, place: Workplace) -> Usage:
    log = re.sub(r"[^\x20-\x7e\n\t\u00a0-\ufffd]", "", ran.outcome.log.replace(str(place.root), "…"))
    return Usage(ran.peak_rss, ran.outcome.signal, ran.outcome.exit_status, log[-_LOG_BYTES:])


def _fail(station: Station, lease: Lease, error: JobError, usage: Usage) -> str:
    """Retry from the branch of the error: what may go away is tried again, the rest is final."""
    settings, claim = station.settings, lease.claim
    delays = settings.retry_delays_s or (0.0,)
    last = 2 if error.code in _ONCE_MORE_ONLY else settings.max_attempts
    again = error.retryable and claim.attempt < min(last, settings.max_attempts)
    delay = delays[min(claim.attempt, len(delays)) - 1] if again else None
    done = _end(station, lease, lambda c: leases.fail(c, claim, error, usage, settings.keep_jobs_s, delay), "failed")
    LOG.info("job %s: attempt %d: %s: %s", claim.job_id, claim.attempt, error.code, error.detail)
    return done


def _end(station: Station, lease: Lease, change: Callable[[Connection], bool], word: str) -> str:
    """Commit the end of an attempt, with what progress is still to be told; waits for a database that is away."""
    until = time.monotonic() + station.settings.publish_retry_s
    while True:
        try:
            with station.database.write() as connection:
                lease.flush(connection)
                return word if change(connection) else "fenced"
        except DatabaseUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(min(1.0, station.settings.beat_s))
