"""Claims, fences and ends, on SQLite and PostgreSQL."""

from __future__ import annotations

import threading
import time
from typing import Any

from tests.service_kit import Desk
from worker.contract import Artifact, Claim, JobError, Progress, Usage
from worker.database import leases, submit
from worker.database.sweep import SweepRules, sweep

RULES = SweepRules(max_attempts=3, announce_after_s=0.0, queue_ttl_s=1e6, keep_s=1e6, announce=("cpu",))
KEEP = (1e6, 1e6)
FILE = Artifact("m.onnx", "model", "application/vnd.onnx", 1, "0" * 64)
CRASH = JobError("RUNTIME_CRASH", "it died", "compare", "node_3", retryable=True)


def claim(desk: Desk, job_id: str, worker: str = "w", lease_s: float = 60.0) -> Claim | None:
    with desk.database.write() as connection:
        return leases.claim(connection, job_id, worker, lease_s, 3)


def taken(desk: Desk, job_id: str, worker: str = "w", lease_s: float = 60.0) -> Claim:
    found = claim(desk, job_id, worker, lease_s)
    assert found is not None
    return found


def write(desk: Desk, function: Any, *values: Any) -> Any:
    with desk.database.write() as connection:
        return function(connection, *values)


def succeed(desk: Desk, mine: Claim) -> bool:
    return bool(write(desk, leases.succeed, mine, "pass", {}, [FILE], Usage(), KEEP))


def test_a_job_is_claimed_once(desk: Desk) -> None:
    job = desk.job()
    first = taken(desk, job)
    assert (first.fence, first.attempt, first.spec.entry) == (1, 1, "m.onnx")
    assert claim(desk, job) is None
    assert desk.row(job).state == "RUNNING"


def test_of_many_claims_at_once_one_wins(desk: Desk) -> None:
    job = desk.job()
    won: list[Claim] = []

    def race() -> None:
        found = claim(desk, job)
        if found is not None:
            won.append(found)

    threads = [threading.Thread(target=race) for _ in range(20)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(won) == 1
    assert len(desk.attempts(job)) == 1


def test_a_stale_worker_can_do_nothing(desk: Desk) -> None:
    job = desk.job()
    stale = taken(desk, job, "stale", lease_s=0.05)
    time.sleep(0.1)
    fresh = taken(desk, job, "fresh")
    assert fresh.fence == 2
    assert not write(desk, leases.extend, stale, 60.0).held
    assert not write(desk, leases.report, stale, [Progress("load")], ["late"])
    assert not succeed(desk, stale)
    assert not write(desk, leases.fail, stale, CRASH, Usage(), 1e6, None)
    assert not write(desk, leases.release, stale)
    assert desk.row(job).worker == "fresh"
    assert succeed(desk, fresh)
    assert [one.outcome for one in desk.attempts(job)] == ["WORKER_LOST", "SUCCEEDED"]


def test_a_renewed_lease_is_not_taken(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job, lease_s=0.05)
    assert write(desk, leases.extend, mine, 60.0).held
    time.sleep(0.1)
    assert claim(desk, job) is None


def test_success_is_final_and_recorded_once(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job)
    assert succeed(desk, mine)
    assert not succeed(desk, mine)
    assert claim(desk, job) is None
    row = desk.row(job)
    assert (row.state, row.verdict, row.published_fence, row.lease_until) == ("SUCCEEDED", "pass", 1, None)
    assert [one.number for one in desk.events(job)] == [1, 2, 3]


def test_a_retryable_failure_waits_for_its_time(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job)
    assert write(desk, leases.fail, mine, CRASH, Usage(signal=11), 1e6, 30.0)
    assert desk.row(job).state == "QUEUED"
    assert claim(desk, job) is None
    attempt = desk.attempts(job)[0]
    assert (attempt.outcome, attempt.signal, attempt.node) == ("RUNTIME_CRASH", 11, "node_3")


def test_a_final_failure_keeps_its_error(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job)
    assert write(desk, leases.fail, mine, CRASH, Usage(), 1e6, None)
    row = desk.row(job)
    assert (row.state, row.error["code"], row.error["node"]) == ("FAILED", "RUNTIME_CRASH", "node_3")


def test_a_released_job_loses_no_attempt(desk: Desk) -> None:
    job = desk.job()
    for _ in range(5):
        assert write(desk, leases.release, taken(desk, job))
    assert taken(desk, job).attempt == 1


def test_cancel_of_a_waiting_job_is_immediate(desk: Desk) -> None:
    job = desk.job()
    assert write(desk, submit.request_cancel, "default", job, 1e6).state == "CANCELED"
    assert claim(desk, job) is None


def test_cancel_of_a_running_job_is_seen_by_its_worker(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job)
    assert write(desk, submit.request_cancel, "default", job, 1e6).state == "CANCELING"
    assert write(desk, leases.look, mine).cancel_requested
    assert not succeed(desk, mine), "a success after the cancel would be a second end"
    assert write(desk, leases.cancel, mine, Usage(), 1e6)
    assert desk.row(job).state == "CANCELED"


def test_a_failure_after_a_cancel_is_a_cancel(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job)
    write(desk, submit.request_cancel, "default", job, 1e6)
    assert write(desk, leases.fail, mine, CRASH, Usage(), 1e6, 0.0)
    assert desk.row(job).state == "CANCELED"


def test_cancel_after_the_end_changes_nothing(desk: Desk) -> None:
    job = desk.job()
    succeed(desk, taken(desk, job))
    assert write(desk, submit.request_cancel, "default", job, 1e6).state == "SUCCEEDED"
    assert write(desk, submit.request_cancel, "another tenant", job, 1e6) is None


def test_the_sweeper_gives_a_silent_job_back(desk: Desk) -> None:
    job = desk.job()
    taken(desk, job, lease_s=0.01)
    time.sleep(0.05)
    assert write(desk, sweep, RULES).requeued == 1
    assert desk.row(job).state == "QUEUED"
    assert taken(desk, job).attempt == 2


def test_attempts_are_counted_on_the_row_and_end(desk: Desk) -> None:
    job = desk.job()
    for _ in range(3):
        taken(desk, job, lease_s=0.01)
        time.sleep(0.05)
        swept = write(desk, sweep, RULES)
    assert swept.failed == 1
    row = desk.row(job)
    assert (row.state, row.error["code"]) == ("FAILED", "ATTEMPTS_EXHAUSTED")
    assert "WORKER_LOST, WORKER_LOST, WORKER_LOST" in row.error["detail"]
    assert claim(desk, job) is None


def test_the_sweeper_ends_the_cancel_of_a_lost_worker(desk: Desk) -> None:
    job = desk.job()
    taken(desk, job, lease_s=0.01)
    write(desk, submit.request_cancel, "default", job, 1e6)
    time.sleep(0.05)
    assert write(desk, sweep, RULES).canceled == 1
    assert desk.row(job).state == "CANCELED"


def test_a_job_nobody_starts_expires(desk: Desk) -> None:
    job = desk.job()
    rules = SweepRules(3, 0.0, 0.0, 1e6, ())
    time.sleep(0.01)
    assert write(desk, sweep, rules).expired == 1
    assert desk.row(job).state == "EXPIRED"


def test_only_short_queues_are_announced_again(desk: Desk) -> None:
    desk.job()
    time.sleep(0.01)
    assert write(desk, sweep, SweepRules(3, 0.0, 1e6, 1e6, ("cuda",))).announced == 0
    assert write(desk, sweep, RULES).announced == 1


def test_progress_keeps_events_without_gaps(desk: Desk) -> None:
    job = desk.job()
    mine = taken(desk, job)
    steps = [Progress("load", 1, 2), Progress("observe", 0, 5)]
    assert write(desk, leases.report, mine, steps, ["a", "b"])
    told = desk.events(job)
    assert [one.number for one in told] == list(range(1, 7))
    assert [one.kind for one in told] == ["state", "state", "progress", "progress", "warning", "warning"]
    row = desk.row(job)
    assert (row.stage, row.done, row.total) == ("observe", 0, 5)


def test_a_node_with_a_name_no_database_takes(desk: Desk) -> None:
    job = desk.job()
    error = JobError("RUNTIME_CRASH", "it died", "compare", "a\0b\ud800")
    assert write(desk, leases.fail, taken(desk, job), error, Usage(), 60.0, None)
    assert desk.attempts(job)[0].node == "ab?"
    assert desk.row(job).error["node"] == "a\0b\ud800"
