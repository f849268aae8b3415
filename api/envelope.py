"""What every answer carries: request id, safe headers; and who is answered at all."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from typing import Any, Final

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import MEDIA_TYPE, problem_body
from api.metrics import observe_request

_SANE_ID: Final = re.compile(r"^[A-Za-z0-9._-]{1,128}$")
_TRACE: Final = re.compile(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")
_STREAMED: Final = re.compile(r"^(PATCH /v1/uploads/|PUT /v1/blobs/)")
LOG: Final = logging.getLogger("narrowcast.api")
BUG: Final = "an unexpected error; the service's log has it under this request id"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Envelope:
    """Outermost layer.  ``hosts`` are the Host names answered; empty: all of them.

    Without keys, the Host and Origin checks are what keeps a web page in the user's browser from using the
    service (DNS rebinding, cross-site requests).  Bodies are bounded here, but for those that are streamed to disk
    and forms, which count for themselves.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], body_bytes: int) -> None:
        self.app = app
        self.hosts = hosts
        self.body_bytes = body_bytes

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
            return await self.app(scope, self._bounded(scope, headers, receive), outgoing)
        except Exception:
            LOG.exception("request %s failed", scope["narrowcast.request_id"])
            if answered:
                raise  # the connection is closed, so that a cut answer does not look whole
            return await _refuse(scope, "INTERNAL", BUG, outgoing)

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[str, str] | None:
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return "MALFORMED", "a NUL character in the address"
        if self.hosts and (culprit := self._foreign(headers)):
            return "FOREIGN_HOST", f"{culprit} is not answered here"
        return None

    def _bounded(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """The same body, ended by a 413 when it is longer than a body may be."""
        if _STREAMED.match(f"{scope['method']} {scope['path']}") or headers.get("content-type", "").startswith(
            "multipart/form-data"
        ):
            return receive
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.body_bytes:
                raise HTTPException(413, f"a body may have {self.body_bytes} bytes here")
            return message

        return counted

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
