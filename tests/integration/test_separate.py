"""API, worker and sweeper as separate processes, with REDIS_URL and PostgreSQL."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.invariants import broken_invariants
from tests.service_kit import ROOT, Broker, Process, environment, free_port, npz, quick_settings, script, wait_until
from tests.worker.conftest import wipe
from worker.database.engine import Database

NARROWCAST = [sys.executable, "-m", "api.cli"]


@contextlib.contextmanager
def apart(folder: Path, database_url: str, *, sweeper: bool = False, **changes: Any) -> Iterator[str]:
    """Commands of ours beside a broker and a database server, over ``data`` in the folder; the API's address."""
    wipe(database_url)
    broker = Broker(folder / "broker").start()
    port = free_port()
    variables = {
        **environment(folder / "data", sweep_in_api=not sweeper, **changes),
        "REDIS_URL": broker.url,
        "DATABASE_URL": database_url,
    }
    commands = [["serve-api", "--port", str(port)], ["serve-worker"]] + [["serve-sweeper"]] * sweeper
    parts = [Process([*NARROWCAST, *one], variables, folder / f"{one[0]}.log").start() for one in commands]
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: httpx2.get(f"{url}/readyz").status_code == 200, 90, "readiness")
        yield url
    finally:
        for one in parts:
            one.stop()
        broker.stop()


@pytest.fixture
def separate(tmp_path: Path, postgres_url: str) -> Iterator[tuple[str, Path]]:
    """All three commands; the API's address and the data folder."""
    with apart(tmp_path, postgres_url, sweeper=True) as url:
        yield url, tmp_path / "data"


def test_the_same_code_on_postgresql(separate: tuple[str, Path], postgres_url: str, tmp_path: Path) -> None:
    url, data = separate
    jobs = []
    for number in range(20):
        answer = httpx2.post(
            f"{url}/v1/jobs",
            files=[("model", ("m.onnx", script(["layers", number]))), ("samples", ("b.npz", npz()))],
        )
        assert answer.status_code == 202, answer.text
        jobs.append(answer.json()["id"])
    poisoned = httpx2.post(
        f"{url}/v1/jobs", files={"model": ("m.onnx", script(["crash", 11]))}, data={"validate": "false"}
    ).json()["id"]
    for job in jobs:
        done = wait_until(lambda job=job: _ended(url, job), 40, job)  # type: ignore[misc]
        assert (done["state"], len(done["attempts"])) == ("SUCCEEDED", 1)
    done = wait_until(lambda: _ended(url, poisoned), 40, poisoned)
    assert (done["state"], len(done["attempts"])) == ("FAILED", 3)
    database = Database(quick_settings(data, database_url=postgres_url).database)
    assert broken_invariants(database, data / "store") == []
    database.close()
    assert not (data / "narrowcast.db").exists(), "nothing went to SQLite"


def _ended(url: str, job: str) -> dict[str, object] | None:
    shown: dict[str, object] = httpx2.get(f"{url}/v1/jobs/{job}").json()
    return shown if shown["finished_at"] else None


def test_a_broker_that_evicts_is_refused(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker").start()
    try:
        broker.client().config_set("maxmemory-policy", "allkeys-lru")
        variables = {**environment(tmp_path / "data"), "REDIS_URL": broker.url}
        done = subprocess.run([*NARROWCAST, "serve-api", "--port", "0"], env=variables, cwd=ROOT, timeout=30,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 3
        assert "maxmemory-policy is allkeys-lru" in done.stderr
    finally:
        broker.stop()
