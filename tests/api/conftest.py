"""The app in this process, with a worker's station beside it; only the broker is left out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.service import Service
from tests.service_kit import npz, quick_settings, script
from worker.runner import Runner
from worker.supervise import Station, run_job

Result = httpx2.Response


@dataclass
class Desk:
    """A client of the app, and the worker's side of the same folder."""

    http: TestClient
    service: Service
    station: Station

    def put_blob(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        answer = self.http.put(f"/v1/blobs/sha256:{digest}", content=content)
        assert answer.status_code == 201, answer.text
        return f"sha256:{digest}"

    def make_model(self, content: bytes = b"{}", name: str = "m.onnx") -> str:
        body = {"files": [{"path": name, "blob": self.put_blob(content)}], "entry": name}
        answer = self.http.post("/v1/models", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def make_input(self) -> str:
        answer = self.http.post("/v1/inputs", json={"blob": self.put_blob(npz()), "filename": "b.npz"})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def submit(self, *steps: Any, **fields: Any) -> dict[str, Any]:
        body = {"model": self.make_model(script(*steps)), "inputs": [self.make_input()], **fields}
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return dict(answer.json())

    def run(self, job_id: str) -> str:
        return run_job(self.station, job_id)

    def finished(self, *steps: Any, **fields: Any) -> str:
        job = str(self.submit(*steps, **fields)["id"])
        self.run(job)
        return job


def problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    """The problem document of an answer, which must be one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["code"] == code, body
    assert body["status"] == status
    assert body["type"] == f"/errors/{code}"
    assert body["request_id"] == answer.headers["request-id"]
    return dict(body)


MakeDesk = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    opened: list[tuple[TestClient, Runner]] = []

    def make(host: str = "127.0.0.1", **changes: Any) -> Desk:
        settings = quick_settings(tmp_path / f"data{len(opened)}", sweep_in_api=False, follow_s=0.02, **changes)
        app = create_app(settings, host=host)
        http = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
        http.__enter__()
        service: Service = app.state.service
        runner = Runner(settings)
        opened.append((http, runner))
        return Desk(http, service, Station(settings, service.database, service.storage, runner, "here"))

    yield make
    for http, runner in opened:
        runner.close()
        http.__exit__(None, None, None)


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    return make_desk()


def pretty(body: Any) -> str:
    return json.dumps(body, indent=1)
