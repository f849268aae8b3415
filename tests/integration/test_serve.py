"""``narrowcast serve`` as a user starts it: everything comes up, everything goes down, nothing is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api.embedded.broker import find_server, is_safe, socket_path
from tests.service_kit import ROOT, Process, alive, environment, free_port, npz, script, wait_until
from worker.processes import family

NARROWCAST = [sys.executable, "-m", "api.cli"]
READY = "narrowcast is ready at"


class Served:
    """A running ``narrowcast serve``."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data = folder / "data"
        command = [*NARROWCAST, "serve", "--port", str(self.port), "--data", str(self.data)]
        variables = environment(self.data, **changes)
        self.process = Process(command, variables, folder / "serve.log")

    def start(self) -> Served:
        before = self.process.text().count(READY) if self.process.log.exists() else 0
        self.process.start()
        wait_until(lambda: self.process.text().count(READY) > before, 40, "readiness")
        return self

    def members(self) -> dict[str, int]:
        """Name -> pid of every process of the service."""
        found = {}
        for pid in family(self.process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for name, mark in (("broker", "server *:0"), ("broker", "valkey"), ("api", "api.server"),
                               ("worker", "-m worker"), ("engine", "fake_engine")):  # fmt: skip
                if mark in command:
                    found[f"{name}{pid}" if name in found else name] = pid
        return found

    def submit(self, *steps: Any, wait: int = 0) -> dict[str, Any]:
        answer = httpx2.post(
            f"{self.url}/v1/jobs",
            files=[("model", ("m.onnx", script(*steps))), ("samples", ("b.npz", npz()))],
            headers={"Prefer": f"wait={wait}"},
            timeout=60,
        )
        assert answer.status_code in (200, 202), answer.text
        return dict(answer.json())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.process.stop()


def test_a_fresh_machine_one_curl(served: Served, tmp_path: Path) -> None:
    served.start()
    (tmp_path / "m.onnx").write_bytes(script())
    (tmp_path / "b.npz").write_bytes(npz())
    done = subprocess.run(
        ["curl", "-sS", "-H", "Prefer: wait=30", "-F", f"model=@{tmp_path}/m.onnx", "-F", f"samples=@{tmp_path}/b.npz",
         "-F", "to=fp16", f"{served.url}/v1/jobs"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    import json

    job = json.loads(done.stdout)
    assert (job["state"], job["verdict"]) == ("SUCCEEDED", "pass")
    for path in (f"/v1/jobs/{job['id']}/report", f"/v1/jobs/{job['id']}/artifacts/m-fp16.onnx"):
        assert httpx2.get(served.url + path).status_code == 200
    groups = {os.getpgid(pid) for name, pid in served.members().items() if not name.startswith("engine")}
    assert len(groups) == 1, "one process group"


def test_ctrl_c_stops_everything_and_the_next_start_goes_on(served: Served) -> None:
    served.start()
    job = served.submit(["sleep", 20], wait=0)
    wait_until(lambda: httpx2.get(f"{served.url}/v1/jobs/{job['id']}").json()["state"] == "RUNNING", 10)
    members = served.members()
    assert {"broker", "api", "worker", "engine"} <= set(members)
    start = time.monotonic()
    served.process.signal_group(signal.SIGINT)
    assert served.process.running is not None
    assert served.process.running.wait(25) == 0
    assert time.monotonic() - start < 20
    assert [name for name, pid in members.items() if alive(pid)] == []
    served.start()
    shown = httpx2.get(f"{served.url}/v1/jobs/{job['id']}").json()
    assert shown["state"] in ("QUEUED", "RUNNING")
    assert httpx2.post(f"{served.url}/v1/jobs/{job['id']}/cancel").status_code in (200, 202)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_parent_leaves_no_orphan(served: Served, number: signal.Signals) -> None:
    served.start()
    members = served.members()
    os.kill(served.process.pid, number)
    wait_until(lambda: not any(alive(pid) for pid in members.values()), 25, "the end of all members")


def test_a_member_that_dies_is_started_again(served: Served) -> None:
    served.start()
    for name in ("broker", "api", "worker"):
        os.kill(served.members()[name], signal.SIGKILL)
        wait_until(lambda: httpx2.get(f"{served.url}/readyz").status_code == 200, 30, f"readiness without {name}")
    assert served.submit(wait=30)["state"] == "SUCCEEDED"


def test_a_second_instance_is_refused(served: Served) -> None:
    served.start()
    other = subprocess.run(
        [*NARROWCAST, "serve", "--port", "0", "--data", str(served.data)],
        env=served.process.environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert other.returncode == 3
    assert f"is in use by the process {served.process.pid}" in other.stderr
    taken = subprocess.run(
        [*NARROWCAST, "serve", "--port", str(served.port), "--data", str(served.data) + "2"],
        env=served.process.environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert taken.returncode == 3
    assert "cannot listen" in taken.stderr


def test_without_any_broker_program(tmp_path: Path) -> None:
    """The degraded mode: the worker reads the job table itself."""
    code = (
        "import sys, api.embedded.serve as serve\n"
        "serve.find_server = lambda _: None\n"
        "from worker.settings import read_settings\n"
        "sys.exit(serve.serve_all(read_settings(), '127.0.0.1', int(sys.argv[1])))\n"
    )
    served = Served(tmp_path)
    served.process.command = [sys.executable, "-c", code, str(served.port)]
    try:
        served.start()
        assert "broker" not in served.members()
        assert served.submit(wait=30)["state"] == "SUCCEEDED"
        long = served.submit(["sleep", 30])
        wait_until(lambda: httpx2.get(f"{served.url}/v1/jobs/{long['id']}").json()["state"] == "RUNNING", 10)
        served.process.signal_group(signal.SIGINT)
        assert served.process.running is not None
        assert served.process.running.wait(25) == 0
        served.start()
        attempts = httpx2.get(f"{served.url}/v1/jobs/{long['id']}").json()["attempts"]
        assert attempts[0]["outcome"] == "RELEASED"
    finally:
        served.process.stop()


def test_old_servers_are_not_used(tmp_path: Path) -> None:
    def program(text: str) -> Path:
        path = tmp_path / "server"
        path.write_text(f"#!/bin/sh\necho '{text}'\n")
        path.chmod(0o755)
        return path

    assert not is_safe(program("Redis server v=7.0.15 sha=0:0 malloc=x bits=64 build=0"))
    assert not is_safe(program("Valkey server v=8.1.3 sha=0:0"))
    assert is_safe(program("Redis server v=8.6.3 sha=0:0"))
    assert is_safe(program("Valkey server v=9.1.2 sha=0:0"))
    assert not is_safe(program("something else"))
    assert not is_safe(tmp_path / "missing")
    assert find_server("/opt/mine") == Path("/opt/mine"), "a named program is the operator's choice"


def test_a_socket_path_that_is_too_long(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    path = socket_path(deep)
    assert len(os.fsencode(path)) <= 100
    assert path.parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(path.parent)


def test_the_command_line_knows_its_commands() -> None:
    help_text = subprocess.run([*NARROWCAST, "--help"], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    from api.cli import COMMANDS

    assert [name for name in COMMANDS if not re.search(rf"^  {name} +\S", help_text, re.M)] == []
    wrong = subprocess.run([*NARROWCAST, "convret"], capture_output=True, text=True, check=False, cwd=ROOT)
    assert wrong.returncode == 2
    assert "Did you mean 'convert'" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], ("fastapi", "sqlalchemy", "celery", "onnx", "onnxruntime", "httpx2")),
        (["convert", "--help"], ("fastapi", "sqlalchemy", "celery", "httpx2")),
        (["serve", "--help"], ("onnx", "onnxruntime", "onnx_ir", "torch")),
        (["submit", "--help"], ("fastapi", "sqlalchemy", "celery", "onnx", "onnxruntime")),
    ],
)
def test_a_command_loads_what_it_needs(arguments: list[str], absent: tuple[str, ...]) -> None:
    code = (
        "import sys, api.cli\n"
        f"sys.argv = ['narrowcast', *{arguments!r}]\n"
        "try:\n    api.cli.main()\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {absent!r} if m in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_a_missing_extra_is_named() -> None:
    code = (
        "import sys\nsys.modules['httpx2'] = None\nimport api.cli\nsys.argv = ['narrowcast', 'jobs']\napi.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 3
    assert "pip install 'narrowcast[service]'" in done.stderr


def test_a_bug_does_not_end_in_1() -> None:
    code = (
        "import sys, api.cli\nsys.argv = ['narrowcast', 'jobs']\n"
        "import api.commands.client as c\nc.Client = lambda: 1 / 0\napi.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 3
    assert "this is a bug" in done.stderr
