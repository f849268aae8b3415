"""Webhooks: signatures, patience, and addresses that are never called."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from tests.service_kit import Desk
from worker import deliveries as webhooks
from worker.database.engine import now
from worker.database.tables import deliveries
from worker.database.tables import webhooks as receivers
from worker.deliveries import ReceiverRefused, check_receiver, deliver_due, resolve, sign
from worker.supervise import run_job

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
LOOPBACK = ("127.0.0.0/8",)


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((dict(self.headers), body))  # type: ignore[attr-defined]
        status = self.server.statuses.pop(0) if self.server.statuses else 200  # type: ignore[attr-defined]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "http://169.254.169.254/latest")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.seen, server.statuses = [], []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def hook(desk: Desk, port: int, events: list[str] | None = None) -> None:
    with desk.database.write() as connection:
        connection.execute(
            insert(receivers).values(
                id="whk_1", tenant="default", url=f"http://127.0.0.1:{port}/hook", secret=SECRET, events=events or [],
                created_at=now(),
            )
        )  # fmt: skip


def rows(desk: Desk) -> list[Any]:
    with desk.database.read() as connection:
        return list(connection.execute(select(deliveries).order_by(deliveries.c.created_at)))


def make_due(desk: Desk) -> None:
    with desk.database.write() as connection:
        connection.execute(update(deliveries).values(next_at=0.0))


def test_news_of_a_job_are_signed_and_delivered(desk: Desk, receiver: Any) -> None:
    hook(desk, receiver.server_port)
    job = desk.job()
    run_job(desk.station(), job)
    settings = desk.settings.model_copy(update={"webhook_networks": LOOPBACK})
    assert deliver_due(desk.database, settings) == 2
    types = [json.loads(body)["type"] for _, body in receiver.seen]
    assert sorted(types) == ["job.started", "job.succeeded"]
    headers, body = receiver.seen[-1]
    low = {name.lower(): value for name, value in headers.items()}
    signed = f"{low['webhook-id']}.{low['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b"0123456789abcdef01234567", signed, hashlib.sha256).digest()
    assert low["webhook-signature"] == "v1," + base64.b64encode(digest).decode()
    assert {one.state for one in rows(desk)} == {"delivered"}
    assert deliver_due(desk.database, settings) == 0


def test_only_wanted_events_are_sent(desk: Desk, receiver: Any) -> None:
    hook(desk, receiver.server_port, ["job.failed"])
    run_job(desk.station(), desk.job())
    assert rows(desk) == []
    run_job(desk.station(), desk.job(["error", "INPUT_MISMATCH"]))
    assert [one.event for one in rows(desk)] == ["job.failed"]


def test_a_failing_receiver_is_tried_again_and_given_up(sqlite_desk: Desk, receiver: Any) -> None:
    hook(sqlite_desk, receiver.server_port, ["job.succeeded"])
    run_job(sqlite_desk.station(), sqlite_desk.job())
    receiver.statuses[:] = [500, 503, 429]
    changes = {"webhook_networks": LOOPBACK, "webhook_delays_s": (100.0, 200.0)}
    settings = sqlite_desk.settings.model_copy(update=changes)
    for attempt, state in ((1, "pending"), (2, "pending"), (3, "failed")):
        make_due(sqlite_desk)
        assert deliver_due(sqlite_desk.database, settings) == 1
        row = rows(sqlite_desk)[0]
        assert (row.attempts, row.state) == (attempt, state)
        assert deliver_due(sqlite_desk.database, settings) == 0, "not before its time"
    assert row.error == "answered 429"


def test_redirects_are_not_followed(sqlite_desk: Desk, receiver: Any) -> None:
    hook(sqlite_desk, receiver.server_port, ["job.succeeded"])
    run_job(sqlite_desk.station(), sqlite_desk.job())
    receiver.statuses[:] = [302]
    deliver_due(sqlite_desk.database, sqlite_desk.settings.model_copy(update={"webhook_networks": LOOPBACK}))
    row = rows(sqlite_desk)[0]
    assert (row.status, row.state) == (302, "pending")
    assert len(receiver.seen) == 1


def test_an_unreachable_receiver_is_logged(sqlite_desk: Desk) -> None:
    hook(sqlite_desk, 1, ["job.succeeded"])
    run_job(sqlite_desk.station(), sqlite_desk.job())
    deliver_due(sqlite_desk.database, sqlite_desk.settings.model_copy(update={"webhook_networks": LOOPBACK}))
    row = rows(sqlite_desk)[0]
    assert (row.status, row.state) == (None, "pending")
    assert "ConnectError" in row.error


def test_a_private_receiver_is_never_called(sqlite_desk: Desk, receiver: Any) -> None:
    hook(sqlite_desk, receiver.server_port, ["job.succeeded"])
    run_job(sqlite_desk.station(), sqlite_desk.job())
    deliver_due(sqlite_desk.database, sqlite_desk.settings)
    assert receiver.seen == []
    assert "ReceiverRefused" in rows(sqlite_desk)[0].error


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://127.0.0.1/x", "no public address"),
        ("https://[::1]/x", "no public address"),
        ("https://[::ffff:10.0.0.1]/x", "no public address"),
        ("https://169.254.169.254/latest", "no public address"),
        ("https://10.1.2.3/", "no public address"),
        ("https://192.168.1.1/", "no public address"),
        ("https://0.0.0.0/", "no public address"),
        ("https://224.0.0.1/", "no public address"),
        ("https://100.64.0.1/", "no public address"),
        ("http://example.com/", "needs https"),
        ("https://user@example.com/", "without user name"),
        ("ftp://example.com/", "https URL"),
        ("https:///x", "https URL"),
        ("https://example.com:99999/", "cannot be read"),
    ],
)
def test_addresses_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(ReceiverRefused, match=why):
        check_receiver(url, ())


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [(2, 1, 6, "", ("8.8.8.8", 443)), (2, 1, 6, "", ("10.0.0.1", 443))]
    monkeypatch.setattr(webhooks.socket, "getaddrinfo", lambda *_, **__: answers)
    with pytest.raises(ReceiverRefused, match=r"10\.0\.0\.1"):
        resolve("https://rebind.example/", ())


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks.socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("8.8.8.8", 443))])
    assert resolve("https://ok.example/", ()).address == "8.8.8.8"


def test_plain_http_needs_an_allowed_network() -> None:
    assert check_receiver("http://127.0.0.1:9/x", LOOPBACK).port == 9
    with pytest.raises(ReceiverRefused, match="needs https"):
        check_receiver("http://8.8.8.8/x", LOOPBACK)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the Standard Webhooks specification."""
    body = '{"test": 2432232314}'
    found = sign("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
