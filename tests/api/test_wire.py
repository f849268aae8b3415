"""Requests that no client library would send, over a real socket: slow, endless, garbled."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from api import wire
from api.app import create_app
from tests.service_kit import free_port, quick_settings, wait_until
from worker.problems import PROBLEMS

PATCH = b"Host: localhost\r\nContent-Type: application/offset+octet-stream\r\nUpload-Offset: 0\r\n"


class Line:
    """A connection to the service, by hand."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def send(self, *lines: bytes) -> Line:
        for line in lines:
            self.socket.sendall(line)
        return self

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """Status, header and body of the next answer."""
        with self.socket.makefile("rb") as file:
            status = int(file.readline().split()[1])
            headers = {}
            while line := file.readline().strip():
                name, _, value = line.decode().partition(": ")
                headers[name.lower()] = value
            body = file.read(int(headers.get("content-length", 0)))
        return status, headers, json.loads(body) if body else None

    def problem(self, code: str) -> dict[str, Any]:
        """The next answer, which is this problem, and the end of the connection."""
        status, headers, body = self.answer()
        assert (status, body["code"]) == (PROBLEMS[code].status, code), body
        assert headers["content-type"] == "application/problem+json"
        assert headers["request-id"] == body["request_id"]
        assert body["hint"]
        assert self.ended()
        return dict(body)

    def ended(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A service in this process, with two seconds' patience."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "HEADER_S", 2.0)
        patch.setattr(wire, "UNWANTED_BODY_S", 1.0)
        folder: Path = tmp_path_factory.mktemp("wire")
        settings = quick_settings(folder, sweep_in_api=False, slow_after_s=2.0, slow_bytes_per_s=500)
        number = free_port()
        config = uvicorn.Config(create_app(settings), port=number, http=wire.Wire, ws="none", log_level="critical")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        wait_until(lambda: server.started, 20, "the server")
        yield number
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def line(port: int) -> Iterator[Line]:
    made = Line(port)
    yield made
    made.socket.close()


def announce(line: Line, size: int) -> bytes:
    body = json.dumps({"size": size}).encode()
    line.send(b"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
              b"Content-Length: %d\r\n\r\n" % len(body), body)  # fmt: skip
    status, headers, _ = line.answer()
    assert status == 201
    return headers["location"].encode()


def offset(line: Line, place: bytes) -> int:
    line.send(b"HEAD ", place, b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    with line.socket.makefile("rb") as file:
        head = b"".join(iter(file.readline, b"\r\n")).decode().lower()
    return int(head.split("upload-offset: ")[1].split()[0])


def trickle(line: Line, piece: bytes, pause_s: float) -> Callable[[], None]:
    """Send the piece again and again until the other side has had enough; returns what stops it."""
    over = threading.Event()

    def send() -> None:
        try:
            while not over.wait(pause_s):
                line.socket.sendall(piece)
        except OSError:
            return

    thread = threading.Thread(target=send)
    thread.start()
    return lambda: (over.set(), thread.join())[1]


def test_what_is_no_http(line: Line) -> None:
    line.send(b"EHLO mail.example\r\n\r\n").problem("MALFORMED")


@pytest.mark.parametrize("head", [b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
                                  b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"])  # fmt: skip
def test_garbled_heads(line: Line, head: bytes) -> None:
    line.send(head).problem("MALFORMED")


def test_a_garbled_chunk(line: Line) -> None:
    head = b"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    line.send(head, b"zz\r\n").problem("MALFORMED")


@pytest.mark.parametrize("field", [b"X: " + b"y" * 100_000, b"X: y\r\n" * 20_000])
def test_a_large_header_is_refused(line: Line, field: bytes) -> None:
    line.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", field, b"\r\n\r\n")
    status, _, body = line.answer()
    assert (status, body["code"]) == (431, "HEADERS_TOO_LARGE")


def test_an_endless_header_is_not_kept(line: Line) -> None:
    line.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
    with pytest.raises(OSError):  # noqa: PT011 - the kind depends on who is faster
        line.send(*[b"y" * 10_000] * 10_000)


def test_a_header_that_does_not_end(line: Line) -> None:
    stop = trickle(line.send(b"GET /healthz HTTP/1.1\r\n"), b"X: y\r\n", 0.1)
    assert "header was not complete" in line.problem("TOO_SLOW")["detail"]
    stop()


def test_a_connection_without_a_request_is_closed(line: Line) -> None:
    assert line.ended()


def test_an_upload_that_trickles_is_ended_and_kept(line: Line, port: int) -> None:
    place = announce(line, 10**6)
    line.send(b"PATCH ", place, b" HTTP/1.1\r\n", PATCH, b"Content-Length: 1000000\r\n\r\n", b"x" * 500_000)
    stop = trickle(line, b"y", 0.05)
    body = line.problem("TOO_SLOW")
    stop()
    assert (body["limit"], body["retryable"]) == (1000, True)
    assert body["actual"] < 1000
    again = Line(port)
    assert offset(again, place) >= 500_000
    again.socket.close()


def test_a_slow_upload_above_the_limit_is_taken(line: Line) -> None:
    place = announce(line, 30_000)
    line.send(b"PATCH ", place, b" HTTP/1.1\r\n", PATCH, b"Content-Length: 30000\r\n\r\n")
    for _ in range(25):
        time.sleep(0.12)
        line.send(b"x" * 1200)
    assert line.answer()[0] == 204


def test_a_json_body_that_trickles(line: Line) -> None:
    head = (
        b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    )
    stop = trickle(line.send(head), b" ", 0.05)
    line.problem("TOO_SLOW")
    stop()


def test_a_form_that_trickles(line: Line) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    stop = trickle(line.send(head, b"Content-Length: 900\r\n\r\n--b\r\n"), b"-", 0.05)
    line.problem("TOO_SLOW")
    stop()


def test_the_rest_of_an_unwanted_body_is_not_read_for_ever(line: Line) -> None:
    line.send(b"PATCH /v1/uploads/none HTTP/1.1\r\n", PATCH, b"Content-Length: 1000000\r\n\r\n")
    stop = trickle(line, b"y", 0.05)
    status, _, body = line.answer()
    assert (status, body["code"]) == (404, "NOT_FOUND")
    assert line.ended()
    stop()


def test_several_requests_on_one_connection(line: Line) -> None:
    """Bodies in one piece and in several, with the next request right behind."""
    one = (
        b"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n"
    )
    line.send(one, b'{"size":', b" 3}", one + b'{"size": 4}' + one, b'{"size": 5}')
    with line.socket.makefile("rb") as file:
        sizes = []
        for _ in range(3):
            assert b"201" in file.readline()
            length = 0
            while name := file.readline().strip().lower():
                length = int(name.split()[1]) if name.startswith(b"content-length") else length
            sizes.append(json.loads(file.read(length))["size"])
    assert sizes == [3, 4, 5]
