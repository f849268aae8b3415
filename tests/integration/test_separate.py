"""API, worker and sweeper as separate processes, with REDIS_URL and PostgreSQL; the real engine at the end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.faults.invariants import broken_invariants
from tests.service_kit import ROOT, Broker, Process, environment, free_port, npz, quick_settings, script, wait_until
from tests.worker.conftest import wipe
from worker.database.engine import Database

NARROWCAST = [sys.executable, "-m", "api.cli"]


@pytest.fixture
def separate(tmp_path: Path, postgres_url: str) -> Iterator[tuple[str, Path]]:
    """Three commands of ours beside a broker and a database server; the API's address and the data folder."""
    wipe(postgres_url)
    broker = Broker(tmp_path / "broker").start()
    port = free_port()
    variables = {
        **environment(tmp_path / "data", sweep_in_api=False),
        "REDIS_URL": broker.url,
        "DATABASE_URL": postgres_url,
    }
    parts = [
        Process([*NARROWCAST, "serve-api", "--port", str(port)], variables, tmp_path / "api.log"),
        Process([*NARROWCAST, "serve-worker"], variables, tmp_path / "worker.log"),
        Process([*NARROWCAST, "serve-sweeper"], variables, tmp_path / "sweeper.log"),
    ]
    for one in parts:
        one.start()
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: httpx2.get(f"{url}/readyz").status_code == 200, 40, "readiness")
        yield url, tmp_path / "data"
    finally:
        for one in parts:
            one.stop()
        broker.stop()


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


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A real model: one Gemm and a Softmax, with its weights outside."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weight = numpy_helper.from_array(random.normal(size=(64, 64)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], "dense"), helper.make_node("Softmax", ["h"], ["y"], "softmax")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [weight],
    )
    path = tmp_path / "tiny.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save_model(model, path, save_as_external_data=True, location="tiny.data", size_threshold=0)
    np.savez(tmp_path / "batch.npz", x=random.normal(size=(4, 64)).astype(np.float32))
    return path


def test_the_real_engine_behind_submit(tmp_path: Path, tiny_model: Path) -> None:
    """Model with external data up, converted model and report down, and the model is the local command's."""
    from tests.integration.test_serve import Served

    served = Served(tmp_path, child_command=[])
    try:
        served.start()
        out = tmp_path / "out.onnx"
        command = ["submit", str(tiny_model), "--samples", str(tmp_path / "batch.npz"), "--to", "bf16", "--output",
                   str(out), "--report", str(tmp_path / "report.json"), "--json"]  # fmt: skip
        variables = {**served.process.environment, "NARROWCAST_URL": served.url, "XDG_CACHE_HOME": str(tmp_path)}
        done = subprocess.run([*NARROWCAST, *command], env=variables, cwd=ROOT, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        import json

        job = json.loads(done.stdout)["jobs"][0]["job"]
        assert (job["state"], job["verdict"]) == ("SUCCEEDED", "pass")
        local = tmp_path / "local" / "tiny-bf16.onnx"
        local.parent.mkdir()
        subprocess.run([*NARROWCAST, "convert", str(tiny_model), "--samples", str(tmp_path / "batch.npz"), "--to",
                        "bf16", "--output", str(local), "--quiet"], cwd=ROOT, check=True, env=variables)  # fmt: skip
        assert local.read_bytes() == out.read_bytes()
        import onnx

        onnx.checker.check_model(str(out), full_check=True)
        report = json.loads((tmp_path / "report.json").read_bytes())
        page = httpx2.get(f"{served.url}/v1/jobs/{job['id']}/layers").json()
        assert page["items"] == report["layers"]
        refused = subprocess.run([*NARROWCAST, "submit", str(tiny_model), "--samples", str(_wrong_batch(tmp_path)),
                                  "--wait"], env=variables, cwd=ROOT, capture_output=True, text=True,
                                 check=False)  # fmt: skip
        assert refused.returncode == 2, refused.stderr
        assert "INPUT_MISMATCH" in refused.stdout
    finally:
        served.process.stop()


def _wrong_batch(folder: Path) -> Path:
    import numpy as np

    np.savez(folder / "wrong.npz", z=np.zeros(3, np.float32))
    return folder / "wrong.npz"
