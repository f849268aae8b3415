"""What every answer carries: request id, safe headers; and who is answered at all."""

from __future__ import annotations

import json
import re
import secrets
import time
from typing import Any, Final

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import MEDIA_TYPE, problem_body
from api.metrics import observe_request

_SANE_ID: Final = re.compile(r"^[A-Za-z0-9._-]{1,128}$")
_TRACE: Final = re.compile(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Envelope:
    """Outermost layer.  ``hosts`` are the Host names answered; empty: all of them.

    Without keys, the Host and Origin checks are what keeps a web page in the user's browser from using the
    service (DNS rebinding, cross-site requests).
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = Headers(scope=scope)
        given = headers.get("request-id", "")
        scope["narrowcast.request_id"] = given if _SANE_ID.match(given) else f"req_{secrets.token_hex(8)}"
        started = time.perf_counter()

        async def outgoing(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(scope, headers, message)
                observe_request(scope, message["status"], time.perf_counter() - started)
            await send(message)

        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return await _refuse(scope, "MALFORMED", "a NUL character in the address", outgoing)
        if self.hosts and (culprit := self._foreign(headers)):
            return await _refuse(scope, "FOREIGN_HOST", f"{culprit} is not answered here", outgoing)
        return await self.app(scope, receive, outgoing)

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
