"""What every answer carries: request id, safe headers; who is answered at all; how long and how slow a body may be."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from typing import Any, Final

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import MEDIA_TYPE, ApiError, problem_body
from api.metrics import observe_request
from api.wire import HEADER_BYTES
from worker.settings import Settings

_SANE_ID: Final = re.compile(r"^[A-Za-z0-9._-]{1,128}$")
_TRACE: Final = re.compile(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")
_STREAMED: Final = re.compile(r"^(PATCH /v1/uploads/|PUT /v1/blobs/)")
_FORM: Final = "POST /v1/jobs"
LOG: Final = logging.getLogger("narrowcast.api")
BUG: Final = "an unexpected error; the service's log has it under this request id"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Envelope:
    """Outermost layer.  ``hosts`` are the Host names answered; empty: all of them.

    Without keys, the Host and Origin checks are what keeps a web page in the user's browser from using the
    service (DNS rebinding, cross-site requests).  Bodies are bounded here, but for those that are streamed to disk
    and forms, which count for themselves; and no body may trickle in for ever.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], settings: Settings) -> None:
        self.app = app
        self.hosts = hosts
        self.settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        given = headers.get("request-id", "")
        scope["narrowcast.request_id"] = given if _SANE_ID.match(given) else f"req_{secrets.token_hex(8)}"
        started = time.perf_counter()
        answered = False

        async def outgoing(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                answered = True
                _add_headers(scope, headers, message)
                observe_request(scope, message["status"], time.perf_counter() - started)
            await send(message)

        if refusal := self._refusal(scope, headers):
            return await _refuse(scope, *refusal, outgoing)
        try:
            return await self.app(scope, self._bounded(scope, headers, self._paced(receive)), outgoing)
        except Exception:
            LOG.exception("request %s failed", scope["narrowcast.request_id"])
            if answered:
                raise  # the connection is closed, so that a cut answer does not look whole
            return await _refuse(scope, "INTERNAL", BUG, outgoing)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[str, str] | None:
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return "MALFORMED", "a NUL character in the address"
        if (size := sum(len(name) + len(value) + 4 for name, value in scope["headers"])) > HEADER_BYTES:
            return "HEADERS_TOO_LARGE", f"the header has {size} bytes, {HEADER_BYTES} are the limit"
        if self.hosts and (culprit := self._foreign(headers)):
            return "FOREIGN_HOST", f"{culprit} is not answered here"
        return None

    def _bounded(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The same body, ended by a 413 when it is longer than a body may be."""
        asked = f"{scope['method']} {scope['path']}"
        is_form = asked == _FORM and headers.get("content-type", "").startswith("multipart/form-data")
        if is_form or _STREAMED.match(asked):
            return receive
        limit, size = self.settings.max_json_bytes, 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise ApiError("TOO_LARGE", f"a body may have {limit} bytes here", limit=limit)
            return message

        return counted

    def _paced(self, receive: Receive) -> Receive:
        """The same body, ended by a 408 when it comes too slowly.  The time we take to store it does not count."""
        wanted = round(self.settings.slow_after_s * self.settings.slow_bytes_per_s)
        left, arrived, more = self.settings.slow_after_s, 0, True

        async def timed() -> Message:
            nonlocal left, arrived, more
            if not more:
                return await receive()
            start = time.monotonic()
            try:
                async with asyncio.timeout(left):
                    message = await receive()
            except TimeoutError as error:
                raise ApiError(
                    "TOO_SLOW", f"{arrived} bytes of the body came within {self.settings.slow_after_s:g} s",
                    headers={"Connection": "close"}, limit=wanted, actual=arrived,
                ) from error  # fmt: skip
            left -= time.monotonic() - start
            arrived += len(message.get("body", b""))
            more = message.get("more_body", False)
            if arrived >= wanted:
                left, arrived = self.settings.slow_after_s, 0
            return message

        return timed

    def _foreign(self, headers: Headers) -> str:
        """The Host or Origin that is none of ours; empty when all is well."""
        host = headers.get("host", "")
        if _name_of(host) not in self.hosts:
            return f"Host {host[:100]!r}"
        origin = headers.get("origin", "")
        if origin and _name_of(origin.partition("://")[2]) not in self.hosts:
            return f"Origin {origin[:100]!r}"
        return ""


def _name_of(host: str) -> str:
    return re.sub(r":\d+$", "", host).lower()


def _add_headers(scope: Scope, incoming: Headers, message: Message) -> None:
    headers = MutableHeaders(scope=message)
    headers["Request-Id"] = scope["narrowcast.request_id"]
    headers["X-Content-Type-Options"] = "nosniff"
    trace = incoming.get("traceparent", "")
    if _TRACE.match(trace):
        headers["traceparent"] = trace
    for name, value in scope.get("narrowcast.headers", {}).items():
        headers[name] = value


async def _refuse(scope: Scope, code: str, detail: str, send: Send) -> None:
    body: dict[str, Any] = problem_body(code, detail, Request(scope))
    content = json.dumps(body).encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": body["status"], "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})
