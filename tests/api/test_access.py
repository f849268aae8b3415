"""Keys, scopes, tenants, limits; hosts that are answered; health, figures, capabilities."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from api.app import create_app
from converter.errors import OptionError
from tests.api.conftest import Desk, MakeDesk, problem
from tests.service_kit import quick_settings


@pytest.fixture
def locked(make_desk: MakeDesk, capsys: pytest.CaptureFixture[str]) -> tuple[Desk, str]:
    desk = make_desk(auth="key")
    printed = capsys.readouterr().out
    return desk, printed.split("shown once: ")[1].strip()


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def new_key(desk: Desk, admin: str, *scopes: str, **fields: Any) -> str:
    body = {"name": "k", "scopes": list(scopes), **fields}
    answer = desk.http.post("/v1/keys", json=body, headers=bearer(admin))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["key"])


class TestKeys:
    def test_the_first_start_prints_one_key(self, locked: tuple[Desk, str]) -> None:
        desk, key = locked
        assert key.startswith("mpk_")
        assert desk.http.get("/v1/jobs", headers=bearer(key)).status_code == 200

    @pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic x"}, {"Authorization": "Bearer mpk_a_b"}])
    def test_without_a_valid_key_nothing(self, locked: tuple[Desk, str], headers: dict[str, str]) -> None:
        answer = locked[0].http.get("/v1/jobs", headers=headers)
        problem(answer, 401, "UNAUTHENTICATED")
        assert answer.headers["www-authenticate"] == "Bearer"

    def test_a_wrong_secret_with_a_right_id(self, locked: tuple[Desk, str]) -> None:
        desk, key = locked
        problem(desk.http.get("/v1/jobs", headers=bearer(key[:-1] + "_")), 401, "UNAUTHENTICATED")

    def test_the_secret_is_stored_nowhere(self, locked: tuple[Desk, str]) -> None:
        desk, key = locked
        secret = key.split("_", 2)[2]
        content = b"".join(
            path.read_bytes() for path in desk.service.settings.data_dir.rglob("narrowcast.db*") if path.is_file()
        )
        assert secret.encode() not in content

    def test_scopes(self, locked: tuple[Desk, str]) -> None:
        desk, admin = locked
        reader = new_key(desk, admin, "jobs:read")
        assert desk.http.get("/v1/jobs", headers=bearer(reader)).status_code == 200
        body = problem(desk.http.post("/v1/models", json={}, headers=bearer(reader)), 403, "FORBIDDEN")
        assert "models:write" in body["detail"]
        problem(desk.http.get("/v1/keys", headers=bearer(reader)), 403, "FORBIDDEN")
        problem(desk.http.get("/metrics", headers=bearer(reader)), 403, "FORBIDDEN")
        assert desk.http.get("/metrics", headers=bearer(admin)).status_code == 200

    def test_revoked_and_expired_keys(self, locked: tuple[Desk, str]) -> None:
        desk, admin = locked
        key = new_key(desk, admin, "jobs:read")
        assert desk.http.get("/v1/jobs", headers=bearer(key)).status_code == 200
        assert desk.http.delete(f"/v1/keys/{key.split('_')[1]}", headers=bearer(admin)).status_code == 204
        problem(desk.http.get("/v1/jobs", headers=bearer(key)), 401, "UNAUTHENTICATED")
        short = new_key(desk, admin, "jobs:read", expires_in_s=0.001)
        problem(desk.http.get("/v1/jobs", headers=bearer(short)), 401, "UNAUTHENTICATED")
        shown = desk.http.get("/v1/keys", headers=bearer(admin)).json()["items"]
        assert all(one["key"] is None for one in shown)
        assert shown[1]["revoked_at"] is not None

    def test_a_repeated_request_does_not_show_the_key_again(self, locked: tuple[Desk, str]) -> None:
        desk, admin = locked
        body = {"name": "k", "scopes": ["jobs:read"]}
        headers = {**bearer(admin), "Idempotency-Key": "x"}
        first, again = (desk.http.post("/v1/keys", json=body, headers=headers).json() for _ in range(2))
        assert first["id"] == again["id"]
        assert (first["key"] is None, again["key"]) == (False, None)


def test_tenants_do_not_see_each_other(locked: tuple[Desk, str]) -> None:
    desk, admin = locked
    scopes = (
        "blobs:write",
        "models:read",
        "models:write",
        "jobs:read",
        "jobs:write",
        "artifacts:read",
        "webhooks:write",
    )
    a, b = (bearer(new_key(desk, admin, *scopes, tenant=name)) for name in ("a", "b"))
    digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    assert desk.http.put(f"/v1/blobs/sha256:{digest}", content=b"foo", headers=a).status_code == 201
    assert desk.http.head(f"/v1/blobs/sha256:{digest}", headers=a).status_code == 200
    assert desk.http.head(f"/v1/blobs/sha256:{digest}", headers=b).status_code == 404, "no oracle"
    asked = {"size": 3, "sha256": digest}
    assert desk.http.post("/v1/uploads", json=asked, headers=b).status_code == 201, "it has to send the bytes"
    manifest = {"files": [{"path": "m.onnx", "blob": f"sha256:{digest}"}], "entry": "m.onnx"}
    problem(desk.http.post("/v1/models", json=manifest, headers=b), 422, "INVALID_REQUEST")
    model = desk.http.post("/v1/models", json=manifest, headers=a).json()["id"]
    body = {"model": model, "options": {"validate": False}}
    problem(desk.http.post("/v1/jobs", json=body, headers=b), 404, "NOT_FOUND")
    job = desk.http.post("/v1/jobs", json=body, headers=a).json()["id"]
    for verb, path in (
        ("GET", ""), ("POST", "/cancel"), ("POST", "/retry"), ("DELETE", ""), ("GET", "/events"), ("GET", "/report"),
        ("GET", "/artifacts"), ("GET", "/layers"), ("GET", "/logs"),
    ):  # fmt: skip
        problem(desk.http.request(verb, f"/v1/jobs/{job}{path}", headers=b), 404, "NOT_FOUND")
    assert desk.http.get("/v1/jobs", headers=b).json()["items"] == []
    hook = desk.http.post("/v1/webhooks", json={"url": "https://example.com/"}, headers=a).json()["id"]
    problem(desk.http.get(f"/v1/webhooks/{hook}/deliveries", headers=b), 404, "NOT_FOUND")


def test_requests_have_a_limit_per_key(make_desk: MakeDesk, capsys: pytest.CaptureFixture[str]) -> None:
    desk = make_desk(auth="key", rate_per_minute=5)
    key = bearer(capsys.readouterr().out.split("shown once: ")[1].strip())
    answers = [desk.http.get("/v1/jobs", headers=key) for _ in range(6)]
    assert [one.status_code for one in answers[:5]] == [200] * 5
    assert answers[0].headers["ratelimit"] == '"requests";r=4;t=60'
    assert answers[0].headers["ratelimit-policy"] == '"requests";q=5;w=60'
    problem(answers[5], 429, "RATE_LIMITED")
    assert 1 <= int(answers[5].headers["retry-after"]) <= 12


class TestWithoutKeys:
    def test_only_on_loopback(self, tmp_path: Any) -> None:
        with pytest.raises(OptionError, match="loopback"):
            create_app(quick_settings(tmp_path, auth="none"), host="0.0.0.0")

    def test_auto_asks_for_keys_elsewhere(self, make_desk: MakeDesk) -> None:
        desk = make_desk(host="0.0.0.0")
        problem(desk.http.get("/v1/jobs"), 401, "UNAUTHENTICATED")

    @pytest.mark.parametrize(
        "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Host": "127.0.0.1.evil.example"}]
    )
    def test_web_pages_of_others_are_not_answered(self, desk: Desk, headers: dict[str, str]) -> None:
        problem(desk.http.post("/v1/jobs/x/cancel", headers=headers), 403, "FOREIGN_HOST")

    @pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:9", "LOCALHOST"])
    def test_our_own_names_are(self, desk: Desk, host: str) -> None:
        assert desk.http.get("/healthz", headers={"Host": host}).status_code == 200

    def test_names_the_operator_trusts(self, make_desk: MakeDesk) -> None:
        desk = make_desk(trusted_hosts=("nc.example",), public_url="https://public.example/x")
        for host in ("nc.example", "public.example"):
            assert desk.http.get("/healthz", headers={"Host": host}).status_code == 200


class TestEnvelope:
    def test_request_ids(self, desk: Desk) -> None:
        assert desk.http.get("/healthz", headers={"Request-Id": "mine-1"}).headers["request-id"] == "mine-1"
        assert desk.http.get("/healthz", headers={"Request-Id": "bad id"}).headers["request-id"].startswith("req_")
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert desk.http.get("/healthz", headers={"traceparent": trace}).headers["traceparent"] == trace

    @pytest.mark.parametrize("path", ["/v1/jobs/%00", "/v1/jobs?label=%00", "/v1/inputs/a%00b"])
    def test_nul_never_reaches_the_database(self, desk: Desk, path: str) -> None:
        problem(desk.http.get(path), 400, "MALFORMED")

    def test_paths_and_verbs_we_do_not_have(self, desk: Desk) -> None:
        problem(desk.http.get("/v2/jobs"), 404, "NOT_FOUND")
        problem(desk.http.put("/v1/jobs"), 405, "METHOD_NOT_ALLOWED")
        problem(desk.http.get("/errors/NOPE"), 404, "NOT_FOUND")

    def test_an_exception_shows_nothing_but_the_request_id(self, desk: Desk) -> None:
        app = desk.http.app
        app.add_api_route("/boom", lambda: 1 / 0)  # type: ignore[attr-defined]
        body = problem(desk.http.get("/boom"), 500, "INTERNAL")
        assert "ZeroDivision" not in str(body)


class TestHealth:
    def test_ready_needs_a_worker(self, desk: Desk) -> None:
        answer = desk.http.get("/readyz")
        body = problem(answer, 503, "NOT_READY")
        assert body["checks"]["database"] == body["checks"]["storage"] == "ok"
        assert "consumer loop" in body["checks"]["workers"]
        from worker.database.beats import drop_beat, write_beat

        write_beat(desk.service.database, desk.service.settings, "w1")
        assert desk.http.get("/readyz").status_code == 200
        assert desk.http.get("/v1/capabilities").json()["devices"] == {"cpu": 1}
        drop_beat(desk.service.database, "w1")
        assert desk.http.get("/readyz").status_code == 503

    def test_a_locked_database_is_503_with_retry_after(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """F13, the API's half."""
        import sqlite3

        path = desk.service.settings.data_dir / "narrowcast.db"
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN EXCLUSIVE")
        try:
            answer = desk.http.post("/v1/webhooks", json={"url": "https://example.com/"})
            problem(answer, 503, "DATABASE_UNAVAILABLE")
            assert int(answer.headers["retry-after"]) >= 1
            assert desk.http.get("/healthz").status_code == 200
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
        assert desk.http.post("/v1/webhooks", json={"url": "https://example.com/"}).status_code == 201

    def test_figures(self, desk: Desk) -> None:
        desk.finished()
        desk.submit()
        text = desk.http.get("/metrics").text
        assert 'narrowcast_jobs{device="cpu",state="SUCCEEDED"} 1.0' in text
        assert 'narrowcast_jobs{device="cpu",state="QUEUED"} 1.0' in text
        assert "narrowcast_oldest_queued_seconds" in text
        assert "narrowcast_database_up 1.0" in text
        assert 'route="/v1/jobs"' in text

    def test_capabilities_have_an_etag(self, desk: Desk) -> None:
        answer = desk.http.get("/v1/capabilities")
        assert answer.json()["stages"][0] == "fetch"
        again = desk.http.get("/v1/capabilities", headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304


class TestWebhooks:
    def test_a_receivers_life(self, desk: Desk) -> None:
        made = desk.http.post("/v1/webhooks", json={"url": "https://example.com/x", "events": ["job.failed"]}).json()
        assert made["secret"].startswith("whsec_")
        assert desk.http.get(f"/v1/webhooks/{made['id']}").json()["secret"] is None
        desk.finished(["error", "INPUT_MISMATCH"])
        sent = desk.http.get(f"/v1/webhooks/{made['id']}/deliveries").json()["items"]
        assert [(one["event"], one["state"]) for one in sent] == [("job.failed", "pending")]
        again = desk.http.post(f"/v1/webhooks/{made['id']}/deliveries/{sent[0]['id']}/redeliver")
        assert again.status_code == 202
        assert desk.http.delete(f"/v1/webhooks/{made['id']}").status_code == 204
        problem(desk.http.get(f"/v1/webhooks/{made['id']}"), 404, "NOT_FOUND")

    @pytest.mark.parametrize(
        "url", ["https://127.0.0.1/", "http://example.com/", "https://[::1]/", "https://10.0.0.1/"]
    )
    def test_private_receivers_are_refused_at_once(self, desk: Desk, url: str) -> None:
        problem(desk.http.post("/v1/webhooks", json={"url": url}), 422, "RECEIVER_REFUSED")
        body = {
            "model": desk.make_model(), "inputs": [desk.make_input()],
            "webhook": {"url": url, "secret": "whsec_" + "A" * 32},
        }  # fmt: skip
        problem(desk.http.post("/v1/jobs", json=body), 422, "RECEIVER_REFUSED")

    def test_a_jobs_own_receiver(self, desk: Desk) -> None:
        from sqlalchemy import select

        from worker.database.tables import deliveries

        hook = {"url": "https://example.com/own", "secret": "whsec_" + "A" * 32, "events": ["job.succeeded"]}
        desk.finished(webhook=hook)
        with desk.service.database.read() as connection:
            rows = connection.execute(select(deliveries)).all()
        assert [(one.url, one.event) for one in rows] == [("https://example.com/own", "job.succeeded")]


def test_the_web_process_loads_no_engine() -> None:
    import subprocess

    code = (
        "import sys, tempfile, pathlib\n"
        "from api.app import create_app\nfrom worker.settings import Settings\n"
        "create_app(Settings(data_dir=pathlib.Path(tempfile.mkdtemp()))).openapi()\n"
        "import api.server, api.embedded.serve, worker.sweeper\n"
        "print([m for m in ('torch', 'onnx', 'onnx_ir', 'onnxruntime') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_client_loads_neither_engine_nor_service() -> None:
    import subprocess

    code = (
        "import sys\nimport api.client, api.commands.client\n"
        "bad = ('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'numpy', 'fastapi', 'sqlalchemy', 'celery', 'pydantic')\n"
        "print([m for m in bad if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
