"""F1 to F4, F8, F15, F18 to F20: engines, pool processes and workers that die, stop, hang or are told to go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.conftest import WITHIN_S, MakeStack, check
from tests.service_kit import (
    ROOT,
    Stack,
    alive,
    quick_settings,
    wait_until,
)
from worker.retention import clear
from worker.storage import LocalStorage

RUN_AND_DIE = """
import os, signal, sys
from pathlib import Path
from worker.settings import read_settings
from worker.database.engine import Database
from worker.storage import LocalStorage
from worker.runner import Runner
from worker.supervise import Station, run_job

class Dying(LocalStorage):
    def put_set(self, folder, name):
        super().put_set(folder, name)
        os.kill(os.getpid(), signal.SIGKILL)

settings = read_settings()
storage, runner = Dying(settings.store_dir), Runner(settings)
run_job(Station(settings, Database(settings.database), storage, runner, "dying"), sys.argv[1])
"""


def test_f1_the_engine_is_killed(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack()
    job = stack.submit(["sleep-once", str(tmp_path / "marker"), 30])
    stack.wait_stage(job, "compare")
    os.kill(stack.engine_pid(stack.workers[0]), signal.SIGKILL)
    done = stack.wait_end(job, WITHIN_S)
    assert (done["state"], [one["outcome"] for one in done["attempts"]]) == (
        "SUCCEEDED", ["RUNTIME_CRASH", "SUCCEEDED"],
    )  # fmt: skip
    assert done["attempts"][0]["signal"] == signal.SIGKILL
    check(stack)


def test_f2_the_pool_process_is_killed(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack()
    job = stack.submit(["sleep-once", str(tmp_path / "marker"), 30])
    stack.wait_stage(job, "compare")
    engine = stack.engine_pid(stack.workers[0])
    os.kill(stack.pool_pid(stack.workers[0]), signal.SIGKILL)
    done = stack.wait_end(job, WITHIN_S)
    assert [one["outcome"] for one in done["attempts"]] == ["WORKER_LOST", "SUCCEEDED"]
    assert not alive(engine), "the engine dies with its pool process"
    check(stack)


def test_f3_the_whole_worker_is_killed(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack()
    job = stack.submit(["sleep-once", str(tmp_path / "marker"), 30])
    stack.wait_stage(job, "compare")
    pool, engine = stack.pool_pid(stack.workers[0]), stack.engine_pid(stack.workers[0])
    stack.workers[0].kill()
    wait_until(lambda: not alive(pool) and not alive(engine), 5, "the end of the worker's children")
    stack.add_worker()
    done = stack.wait_end(job, WITHIN_S)
    assert [one["outcome"] for one in done["attempts"]] == ["WORKER_LOST", "SUCCEEDED"]
    check(stack)


def test_f4_killed_between_files_and_row(make_stack: MakeStack) -> None:
    stack = make_stack(worker_count=0)
    job = stack.submit()
    done = subprocess.run([sys.executable, "-c", RUN_AND_DIE, job], env=stack.environment, cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert stack.state(job) == "RUNNING"
    assert (stack.data / "store/artifacts" / job / "1").is_dir(), "files without a row"
    stack.add_worker()
    assert stack.wait_end(job, WITHIN_S)["state"] == "SUCCEEDED"
    check(stack)

    clear(stack.database, LocalStorage(stack.data / "store"), quick_settings(stack.data))
    assert [path.name for path in (stack.data / "store/artifacts" / job).iterdir()] == ["2"]
    check(stack)


def test_f8_a_stopped_worker_finds_its_job_taken(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack()
    job = stack.submit(["sleep-once", str(tmp_path / "marker"), 6])
    stack.wait_stage(job, "compare")
    stale = stack.pool_pid(stack.workers[0])
    os.kill(stale, signal.SIGSTOP)
    os.kill(stack.workers[0].pid, signal.SIGSTOP)
    stack.add_worker()
    done = stack.wait_end(job, WITHIN_S)
    files = stack.http.get(f"/v1/jobs/{job}/artifacts").json()
    os.kill(stack.workers[0].pid, signal.SIGCONT)
    os.kill(stale, signal.SIGCONT)
    wait_until(lambda: f"job {job}: fenced" in stack.workers[0].text(), 15, "the fence")
    assert stack.job(job) == done
    assert stack.http.get(f"/v1/jobs/{job}/artifacts").json() == files
    check(stack)
    again = [stack.submit() for _ in range(3)]
    assert {stack.wait_end(one)["state"] for one in again} == {"SUCCEEDED"}, "the fenced worker works on"


def test_f15_a_poisoned_model_stops_and_harms_nobody(make_stack: MakeStack) -> None:
    stack = make_stack(worker_count=2)
    poison = stack.submit(["crash", 11])
    others = [stack.submit(["sleep", 0.1]) for _ in range(5)]
    done = stack.wait_end(poison, WITHIN_S)
    assert (done["state"], done["error"]["code"], len(done["attempts"])) == ("FAILED", "RUNTIME_CRASH", 3)
    for job in others:
        assert stack.wait_end(job)["run_seconds"] < 5
    check(stack)


def test_f18_nothing_of_a_run_survives_it(make_stack: MakeStack, tmp_path: Path) -> None:
    stack = make_stack()
    marker = tmp_path / "escaped"
    job = stack.submit(["escape", str(marker)], ["fork"], ["hang"], deadline_s=1.0)
    wait_until(lambda: marker.exists() and marker.read_text(), 10, "the escape")
    engine = stack.engine_pid(stack.workers[0])
    start = time.monotonic()
    done = stack.wait_end(job, 15)
    assert done["error"]["code"] == "DEADLINE_EXCEEDED"
    escaped = int(marker.read_text())
    wait_until(lambda: not alive(escaped) and not alive(engine), 15 - (time.monotonic() - start), "no survivors")
    check(stack)


@pytest.mark.parametrize("stage", ["load", "observe", "decide", "rewrite", "compare", "judge", "build"])
def test_f19_cancel_at_each_stage(shared_stack: Stack, stage: str) -> None:
    job = shared_stack.submit(["sleep", 30], at=stage)
    shared_stack.wait_stage(job, stage)
    assert shared_stack.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
    assert shared_stack.wait_end(job, 10)["state"] == "CANCELED"
    assert shared_stack.http.get(f"/v1/jobs/{job}/artifacts").status_code == 409
    check(shared_stack)


def test_f19_cancel_racing_with_the_end(shared_stack: Stack) -> None:
    """The delay is steered to where the two meet: later after a cancel that won, sooner after one that lost."""
    ends = {"CANCELED": 0, "SUCCEEDED": 0}
    delay = 0.05
    for _ in range(25):
        job = shared_stack.submit()
        time.sleep(delay)
        status = shared_stack.http.post(f"/v1/jobs/{job}/cancel").status_code
        state = shared_stack.wait_end(job, 10)["state"]
        assert (status == 409) == (state == "SUCCEEDED"), (status, state)
        ends[state] += 1
        delay = delay * 1.4 if state == "CANCELED" else delay * 0.7
    assert sum(ends.values()) == 25
    assert min(ends.values()) >= 3, "the race was not close enough to be one"
    check(shared_stack)


def test_f20_a_deploy_with_a_running_job(make_stack: MakeStack) -> None:
    stack = make_stack(changes={"soft_shutdown_s": 0.5, "lease_s": 30.0})
    long, short = stack.submit(["sleep", 5]), stack.submit()
    stack.wait_stage(long, "compare")
    start = time.monotonic()
    stack.workers[0].terminate(20)
    assert time.monotonic() - start < 5, "it does not wait for the job"
    released = stack.wait_state(long, "QUEUED", timeout_s=5)
    assert [one["outcome"] for one in released["attempts"]] == ["RELEASED"]
    stack.add_worker()
    for job in (long, short):
        done = stack.wait_end(job, 40)
        assert (done["state"], done["attempts"][-1]["outcome"]) == ("SUCCEEDED", "SUCCEEDED")
    check(stack)
