"""What happens when parts die, stop, repeat themselves or run full: real processes, real signals, bounded time.

The numbers are those of the fault list (F1 to F24); F13's, F21's and F23's other halves are in ``tests/api`` and below.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.invariants import broken_invariants
from tests.service_kit import ROOT, Process, Stack, alive, can_mount, environment, small_disk, wait_until
from worker.client import Doorbell

MakeStack = Callable[..., Stack]
WITHIN_S = 12.0
"""Lease (3 s) plus sweep (0.5 s) plus a run, with room for a slow machine."""


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[MakeStack]:
    opened: list[Stack] = []

    def make(**options: Any) -> Stack:
        stack = Stack(tmp_path, **options)
        opened.append(stack)
        return stack.__enter__()

    yield make
    for one in opened:
        one.__exit__()


def check(stack: Stack, *, ended: bool = True) -> None:
    assert broken_invariants(stack.database, stack.data / "store", ended=ended) == []


def doorbell(stack: Stack) -> Doorbell:
    from worker.settings import Settings

    return Doorbell(Settings(data_dir=stack.data, redis_url=stack.broker.url))


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
    from tests.service_kit import quick_settings
    from worker.retention import clear
    from worker.storage import LocalStorage

    clear(stack.database, LocalStorage(stack.data / "store"), quick_settings(stack.data))
    assert [path.name for path in (stack.data / "store/artifacts" / job).iterdir()] == ["2"]
    check(stack)


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


def test_f13_the_database_is_locked_for_a_while(make_stack: MakeStack) -> None:
    stack = make_stack()
    job = stack.submit(["sleep", 2])
    stack.wait_stage(job, "compare")
    blocker = sqlite3.connect(stack.data / "narrowcast.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    time.sleep(1)
    assert stack.state(job) == "RUNNING", "reading goes on"
    time.sleep(7)
    blocker.execute("ROLLBACK")
    blocker.close()
    done = stack.wait_end(job, 30)
    assert done["state"] == "SUCCEEDED"
    check(stack)


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
def test_f14_everything_lies_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk("48m") as full:
        (tmp_path / "data").symlink_to(full)
        with Stack(tmp_path, {"retry_delays_s": (0.0,)}) as stack:
            good = stack.submit()
            assert stack.wait_end(good)["state"] == "SUCCEEDED"
            greedy = stack.submit(["fill", 100 * 2**20])
            done = stack.wait_end(greedy, 30)
            assert (done["state"], done["error"]["code"]) == ("FAILED", "DISK_FULL")
            after = stack.submit()
            assert stack.wait_end(after, 30)["state"] == "SUCCEEDED", "space was freed, the service goes on"
            (full / "filler").write_bytes(b"x" * (full_bytes(full) - 300_000))
            answer = stack.http.post("/v1/uploads", json={"size": 5 * 2**20})
            assert (answer.status_code, answer.json()["code"]) == (507, "STORAGE_FULL")
            (full / "filler").unlink()
            assert stack.http.post("/v1/uploads", json={"size": 5 * 2**20}).status_code == 201
            check(stack)


def full_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


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
    ends: dict[str, int] = {}
    for number in range(25):
        job = shared_stack.submit()
        time.sleep(0.004 * number)
        status = shared_stack.http.post(f"/v1/jobs/{job}/cancel").status_code
        state = shared_stack.wait_end(job, 10)["state"]
        assert (status == 409) == (state == "SUCCEEDED"), (status, state)
        ends[state] = ends.get(state, 0) + 1
    assert sum(ends.values()) == 25
    assert set(ends) == {"CANCELED", "SUCCEEDED"}, "the race was not close enough to be one"
    check(shared_stack)


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


def test_f20_a_deploy_with_a_running_job(make_stack: MakeStack) -> None:
    stack = make_stack(changes={"soft_shutdown_s": 0.5, "lease_s": 30.0})
    long, short = stack.submit(["sleep", 8]), stack.submit()
    stack.wait_stage(long, "compare")
    start = time.monotonic()
    stack.workers[0].terminate(20)
    assert time.monotonic() - start < 8, "it does not wait for the job"
    released = stack.wait_state(long, "QUEUED", timeout_s=5)
    assert [one["outcome"] for one in released["attempts"]] == ["RELEASED"]
    stack.add_worker()
    for job in (long, short):
        done = stack.wait_end(job, 40)
        assert (done["state"], done["attempts"][-1]["outcome"]) == ("SUCCEEDED", "SUCCEEDED")
    check(stack)


def test_f21_the_api_is_killed_during_an_upload(tmp_path: Path) -> None:
    """Twenty kills at random bytes; then the file is whole, and no offset was ever beyond what was stored."""
    import hashlib
    import random

    from api.client import Client, ServiceUnreachable

    random.seed(21)
    content = random.randbytes(24 * 2**20)
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    with Stack(tmp_path, {"sync_every_bytes": 2**20}, worker_count=0, with_broker=False) as stack:
        kills = 0
        blob = ""
        stop = threading.Event()

        def killer() -> None:
            nonlocal kills
            while not stop.is_set() and kills < 20:
                time.sleep(random.uniform(0.01, 0.12))
                if stop.is_set():
                    return
                stack.api.kill()
                kills += 1
                stack.api.start()
                wait_until(lambda: stack.http.get("/healthz").status_code == 200, 20, "API")

        def slowly(done: int) -> None:
            time.sleep(0.004)

        thread = threading.Thread(target=killer)
        thread.start()
        client = Client(stack.url, state_dir=tmp_path / "state", tries=30)
        try:
            for _ in range(60):
                try:
                    blob = client.upload(path, lambda *_: slowly(0))
                    break
                except ServiceUnreachable:
                    continue
        finally:
            stop.set()
            thread.join()
            client.close()
        assert kills >= 3, "the upload was over before anything was killed"
        assert blob == "sha256:" + hashlib.sha256(content).hexdigest()
        stored = list((stack.data / "store/blobs").rglob("*-*"))
        assert [hashlib.sha256(one.read_bytes()).hexdigest() for one in stored] == [blob[7:]]


def test_f22_two_writers_of_one_upload(shared_stack: Stack) -> None:
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    import httpx2

    content = os.urandom(8 * 2**20)
    digest = hashlib.sha256(content).hexdigest()
    asked = {"size": len(content), "sha256": digest}
    place = shared_stack.http.post("/v1/uploads", json=asked).headers["location"]
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}

    def send(_: int) -> int:
        def pieces() -> Iterator[bytes]:
            for start in range(0, len(content), 2**18):
                time.sleep(0.005)
                yield content[start : start + 2**18]

        return httpx2.patch(shared_stack.url + place, content=pieces(), headers=headers, timeout=30).status_code

    with ThreadPoolExecutor(2) as pool:
        statuses = sorted(pool.map(send, range(2)))
    assert statuses[0] == 204
    assert statuses[1] in (409, 423)
    assert shared_stack.http.head(f"/v1/blobs/sha256:{digest}").status_code == 200


def test_f24_event_streams_that_break(shared_stack: Stack) -> None:
    """Five readers that drop their connection all the time see every event exactly once."""
    steps = [["progress", "compare", n, 40] for n in range(40)]
    slow = [part for one in steps for part in (one, ["sleep", 0.06])]
    job = shared_stack.submit(*slow)
    seen: list[list[int]] = [[] for _ in range(5)]

    def read(numbers: list[int]) -> None:
        import httpx2

        while True:
            headers = {"Last-Event-ID": str(numbers[-1] if numbers else 0)}
            with httpx2.stream(
                "GET", f"{shared_stack.url}/v1/jobs/{job}/events", headers=headers, timeout=30
            ) as answer:
                taken = 0
                for line in answer.iter_lines():
                    if line.startswith("id: "):
                        numbers.append(int(line[4:]))
                        taken += 1
                    if line.startswith("data: ") and ('"SUCCEEDED"' in line):
                        return
                    if taken == 3 and line == "":
                        break

    threads = [threading.Thread(target=read, args=(one,)) for one in seen]
    for one in threads:
        one.start()
    for one in threads:
        one.join(40)
    last = shared_stack.http.get(f"/v1/jobs/{job}/events").text.rsplit("id: ", 1)[1].split("\n")[0]
    assert int(last) > 20
    for numbers in seen:
        assert numbers == list(range(1, int(last) + 1))


def test_settings_of_another_process_are_the_same(tmp_path: Path) -> None:
    """The kit's own promise: what a test sets, the process gets."""
    code = "from worker.settings import read_settings; print(read_settings().model_dump_json())"
    done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, lease_s=7.5), cwd=ROOT,
                          capture_output=True, text=True, check=True)  # fmt: skip
    import json

    found = json.loads(done.stdout)
    assert (found["lease_s"], found["sweep_s"], found["data_dir"]) == (7.5, 0.5, str(tmp_path))
