"""``python -m tests.faults --repeat N``: random kills under load, and the invariants after each of them.

One service, two workers.  In every round some jobs are submitted, one part is killed at a random moment (engine,
pool process, worker, API, broker), it is started again where an operator's supervisor would do so, and when all
jobs have ended the checker looks.  The exit status is the number of broken rounds.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from tests.faults.invariants import broken_invariants
from tests.service_kit import Process, Stack, wait_until
from worker.processes import children_of

FAST = {"lease_s": 1.5, "beat_s": 0.3, "sweep_s": 0.3, "requeue_after_s": 1.0, "max_attempts": 5}
ROUND_S = 40.0


def kill_engine(stack: Stack) -> None:
    for worker in stack.workers:
        for pool in children_of(worker.pid):
            for engine in children_of(pool):
                _kill(engine)


def kill_pool(stack: Stack) -> None:
    for pool in children_of(random.choice(stack.workers).pid):
        _kill(pool)


def kill_worker(stack: Stack) -> None:
    worker = random.choice(stack.workers)
    worker.kill()
    _again(worker)


def kill_api(stack: Stack) -> None:
    stack.api.kill()
    time.sleep(random.uniform(0, 0.3))
    stack.api.start()
    wait_until(lambda: stack.http.get("/healthz").status_code == 200, 20, "API")


def kill_broker(stack: Stack) -> None:
    stack.broker.process.kill()
    time.sleep(random.uniform(0, 1.0))
    stack.broker.start()


KILLS: tuple[Callable[[Stack], None], ...] = (kill_engine, kill_pool, kill_worker, kill_api, kill_broker)


def _kill(pid: int) -> None:
    import contextlib
    import os

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _again(worker: Process) -> None:
    worker.start()


def submit(stack: Stack) -> str:
    """A job, sent again under its key until somebody takes it."""
    key = str(random.getrandbits(64))
    steps = json.dumps({"steps": [["sleep", round(random.uniform(0, 0.4), 3)]]}).encode()
    deadline = time.monotonic() + ROUND_S
    while time.monotonic() < deadline:
        try:
            answer = stack.http.post(
                "/v1/jobs",
                files={"model": ("m.onnx", steps)},
                data={"validate": "false"},
                headers={"Idempotency-Key": key},
            )
            if answer.status_code == 202:
                return str(answer.json()["id"])
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("no job was taken")


def one_round(stack: Stack) -> tuple[str, list[str]]:
    """Which kill it was, and what was broken after it."""
    jobs = [submit(stack) for _ in range(random.randint(1, 4))]
    time.sleep(random.uniform(0, 0.5))
    kill = random.choice(KILLS)
    kill(stack)
    jobs += [submit(stack) for _ in range(random.randint(0, 2))]
    for job in jobs:
        stack.wait_end(job, ROUND_S)
    broken = broken_invariants(stack.database, stack.data / "store")
    failed = [job for job in jobs if stack.state(job) != "SUCCEEDED"]
    return kill.__name__, broken + [f"job {job} of a healthy model did not succeed" for job in failed]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--repeat", type=int, default=50, metavar="N")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(10**6)
    random.seed(seed)
    kills: collections.Counter[str] = collections.Counter()
    bad = 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nc-faults-") as folder, Stack(Path(folder), FAST, worker_count=2) as stack:
        for number in range(1, options.repeat + 1):
            name, broken = one_round(stack)
            kills[name] += 1
            bad += bool(broken)
            for text in broken:
                print(f"round {number}, {name}: {text}", flush=True)
            if number % 20 == 0:
                print(f"{number} rounds, {time.monotonic() - start:.0f} s, {bad} broken", flush=True)
        states = collections.Counter(one["state"] for one in _all_jobs(stack))
    listed = ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
    print(f"seed {seed}: {options.repeat} kills ({listed}); jobs {dict(states)}; {bad} rounds with a broken invariant")
    return bad


def _all_jobs(stack: Stack) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    token = ""
    while token is not None:
        query = {"page_size": 200, **({"page_token": token} if token else {})}
        page = stack.http.get("/v1/jobs", params=query).json()
        found += page["items"]
        token = page["next_page_token"]
    return found


if __name__ == "__main__":
    sys.exit(main())
