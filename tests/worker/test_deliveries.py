"""Webhooks: signatures, patience, and addresses that are never called."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import socket
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
    hook_at(desk, "whk_1", f"http://127.0.0.1:{port}/hook", events)


def hook_at(desk: Desk, name: str, url: str, events: list[str] | None = None, secret: str = SECRET) -> None:
    """Register a receiver without the API's checks."""
    row = {"id": name, "tenant": "default", "url": url, "secret": secret, "events": events or [], "created_at": now()}
    with desk.database.write() as connection:
        connection.execute(insert(receivers).values(row))


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


def test_a_receiver_that_cannot_be_called_holds_up_no_other(sqlite_desk: Desk, receiver: Any) -> None:
    """What an older version took without looking: each fails for itself, in its own time."""
    done = ["job.succeeded"]
    hook(sqlite_desk, receiver.server_port, done)
    bad = ["https://" + "a" * 64 + ".com/", "https://..", "https://%00/", "https://[::1%25x]/", "https://10.1/"]
    for number, url in enumerate(bad):
        hook_at(sqlite_desk, f"whk_b{number}", url, done)
    hook_at(sqlite_desk, "whk_s", f"http://127.0.0.1:{receiver.server_port}/", done, "whsec_A")
    run_job(sqlite_desk.station(), sqlite_desk.job())
    settings = sqlite_desk.settings.model_copy(update={"webhook_networks": LOOPBACK})
    assert deliver_due(sqlite_desk.database, settings) == len(bad) + 2
    found = {one.webhook_id: one for one in rows(sqlite_desk)}
    assert found["whk_1"].state == "delivered"
    assert all(one.error and one.state == "pending" for name, one in found.items() if name != "whk_1")
    assert "10.0.0.1, which is no public address" in found["whk_b4"].error


def test_a_receiver_that_trickles_is_left_alone(sqlite_desk: Desk, receiver: Any) -> None:
    """Bytes that keep coming are no answer; and who waits behind waits no longer for it."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not over.wait(0.05):
                    connection.sendall(b"X: y\r\n")

        thread = threading.Thread(target=trickle)
        thread.start()
        hook(sqlite_desk, receiver.server_port, ["job.succeeded"])
        hook_at(sqlite_desk, "whk_0", f"http://127.0.0.1:{listener.getsockname()[1]}/", ["job.succeeded"])
        run_job(sqlite_desk.station(), sqlite_desk.job())
        changes = {"webhook_networks": LOOPBACK, "webhook_timeout_s": 1.0}
        deliver_due(sqlite_desk.database, sqlite_desk.settings.model_copy(update=changes))
        over.set()
        thread.join()
    found = {one.webhook_id: (one.state, one.error) for one in rows(sqlite_desk)}
    assert found["whk_0"] == ("pending", "no answer within 1 s")
    assert found["whk_1"] == ("delivered", "")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fe80::1", "240.0.0.1"])
def test_a_name_that_leads_inside_is_never_called(
    sqlite_desk: Desk, receiver: Any, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    port = receiver.server_port
    found = [(2, 1, 6, "", (address, port))]
    monkeypatch.setattr(webhooks.socket, "getaddrinfo", lambda *_, **__: found)
    hook_at(sqlite_desk, "whk_1", f"https://inside.example:{port}/", ["job.succeeded"])
    run_job(sqlite_desk.station(), sqlite_desk.job())
    deliver_due(sqlite_desk.database, sqlite_desk.settings)
    assert receiver.seen == []
    assert "no public address" in rows(sqlite_desk)[0].error
