"""F5 to F7, F9 to F12: messages that come twice, and a broker that is killed, empty, absent or hangs."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from tests.faults.conftest import MakeStack, check, doorbell
from tests.service_kit import (
    Process,
    alive,
    wait_until,
)

DIE_AFTER_COMMIT = """
import os, signal, sys
from pathlib import Path
import worker.app as app
from worker.settings import read_settings

inner = app.run
def run(bench, job_id):
    inner(bench, job_id)
    marker = Path(os.environ["MARKER"])
    if not marker.exists():
        marker.touch()
        os.killpg(0, signal.SIGKILL)
app.run = run
app.serve_worker(read_settings())
"""


def test_f5_killed_between_row_and_ack(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack(worker_count=0, changes={"visibility_timeout_s": 2})
    environment_ = {**stack.environment, "MARKER": str(tmp_path / "marker")}
    dying = Process([sys.executable, "-c", DIE_AFTER_COMMIT], environment_, tmp_path / "dying.log").start()
    stack.workers.append(dying)
    job = stack.submit()
    wait_until(lambda: not alive(dying.pid), 15, "the worker's death")
    assert stack.state(job) == "SUCCEEDED"
    stack.add_worker()
    wait_until(lambda: f"job {job}: skipped" in stack.workers[-1].text(), 30, "the redelivery")
    assert len(stack.job(job)["attempts"]) == 1
    check(stack)


def test_f6_fifty_deliveries_of_one_job(make_stack: MakeStack) -> None:
    stack = make_stack(worker_count=2)
    job = stack.submit(["sleep", 0.5])
    bell = doorbell(stack)
    for _ in range(49):
        bell.ring(job, "cpu")
    assert stack.wait_end(job)["state"] == "SUCCEEDED"

    def skipped() -> int:
        return sum(one.text().count(f"job {job}: skipped") for one in stack.workers)

    wait_until(lambda: skipped() >= 49, 15, "49 skips")
    assert len(stack.job(job)["attempts"]) == 1
    bell.close()
    check(stack)


def test_f7_visibility_timeout_shorter_than_the_job(make_stack: MakeStack) -> None:
    stack = make_stack(worker_count=2, changes={"visibility_timeout_s": 1})
    job = stack.submit(["sleep", 14])
    done = stack.wait_end(job, 30)
    assert (done["state"], len(done["attempts"])) == ("SUCCEEDED", 1)
    skips = sum(one.text().count(f"job {job}: skipped") for one in stack.workers)
    assert skips >= 1, "the broker did deliver it again"
    check(stack)


def test_f9_the_broker_is_killed_and_comes_back(make_stack: MakeStack) -> None:
    stack = make_stack()
    running = stack.submit(["sleep", 3])
    stack.wait_stage(running, "compare")
    queued = [stack.submit() for _ in range(3)]
    wait_until(lambda: doorbell(stack).waiting("cpu") == 3, 5, "three messages")
    time.sleep(1.2)  # appendfsync everysec
    stack.broker.process.kill()
    late = stack.submit()
    assert stack.state(late) == "QUEUED"
    time.sleep(2)
    stack.broker.start()
    for job in (running, *queued, late):
        done = stack.wait_end(job, 40)
        assert (done["state"], len(done["attempts"])) == ("SUCCEEDED", 1)
    check(stack)


def test_f9_the_broker_is_away_when_a_job_ends(make_stack: MakeStack) -> None:
    """The acknowledgement is lost; Celery would wait for it for ever and take no other job."""
    stack = make_stack()
    job = stack.submit(["sleep", 0.6])
    stack.wait_stage(job, "compare")
    stack.broker.process.kill()
    wait_until(lambda: "Couldn't ack" in stack.workers[0].text(), 10, "a lost acknowledgement")
    stack.broker.start()
    assert stack.wait_end(stack.submit(), 20)["state"] == "SUCCEEDED"
    assert stack.state(job) == "SUCCEEDED"
    check(stack)


def test_f10_the_broker_comes_back_empty(make_stack: MakeStack) -> None:
    stack = make_stack()
    running = stack.submit(["sleep", 2])
    stack.wait_stage(running, "compare")
    queued = [stack.submit() for _ in range(3)]
    wait_until(lambda: doorbell(stack).waiting("cpu") == 3, 5, "three messages")
    stack.broker.forget()
    for job in (running, *queued):
        assert stack.wait_end(job, 40)["state"] == "SUCCEEDED"
    check(stack)


def test_f11_no_broker_when_a_job_comes(make_stack: MakeStack) -> None:
    stack = make_stack(with_broker=False, worker_count=0)
    start = time.monotonic()
    jobs = [stack.submit() for _ in range(3)]
    assert time.monotonic() - start < 3, "less than a second each"
    assert {stack.state(job) for job in jobs} == {"QUEUED"}
    stack.broker.start()
    stack.add_worker()
    for job in jobs:
        assert stack.wait_end(job, 30)["state"] == "SUCCEEDED"
    check(stack)


def test_f12_a_broker_that_hangs(make_stack: MakeStack) -> None:
    stack = make_stack()
    assert stack.wait_end(stack.submit())["state"] == "SUCCEEDED"
    stack.broker.process.signal_group(signal.SIGSTOP)
    times = []
    jobs = []
    for _ in range(3):
        start = time.monotonic()
        jobs.append(stack.submit())
        times.append(time.monotonic() - start)
        stack.http.get(f"/v1/jobs/{jobs[-1]}")
    assert max(times) < 1.0, "no request waits for the broker"
    time.sleep(5)
    stack.broker.process.signal_group(signal.SIGCONT)
    for job in jobs:
        assert stack.wait_end(job, 60)["state"] == "SUCCEEDED"
    check(stack)
