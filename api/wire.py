"""The HTTP protocol below the app: what uvicorn's lacks, and faster bodies.

A request that never gets as far as the app is answered here: one that is no HTTP, one with an endless header, one
whose header does not end.  Rests on names inside uvicorn, which is pinned to its minor version for that.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Final

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import MEDIA_TYPE, problem_body
from worker.problems import problem

HEADER_BYTES: Final = 64 * 2**10
HEADER_S: Final = 30.0
"""Time a client has from its first byte, or from connecting, until its header is complete."""
UNWANTED_BODY_S: Final = 60.0
"""Time a client has to send the rest of a body after it was answered."""


class Wire(HttpToolsProtocol):
    """One connection."""

    _limit: asyncio.TimerHandle | None = None
    _header: object = None
    """Stands for the header that is arriving."""
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._end_after(HEADER_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._go_on()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        header = self._header
        super().data_received(data)
        if header is not None and self._header is header:
            self._header_bytes += len(data)
        if self._header_bytes > HEADER_BYTES:
            self._refuse("HEADERS_TOO_LARGE", f"the header goes on beyond {HEADER_BYTES} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header = object()
        self._header_bytes = 0
        self._end_after(HEADER_S)

    def on_headers_complete(self) -> None:
        self._header = None
        self._go_on()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.body or cycle.response_complete:
            super().on_body(body)
            return
        cycle.body = body  # type: ignore[assignment]  # as it is: uvicorn's own way copies every piece twice
        if len(body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._go_on()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._end_after(UNWANTED_BODY_S)

    def send_400_response(self, msg: str) -> None:
        self._refuse("MALFORMED", msg)

    def _end_after(self, seconds: float) -> None:
        self._go_on()
        self._limit = self.loop.call_later(seconds, self._too_slow)

    def _go_on(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _too_slow(self) -> None:
        if self._header is not None:
            self._refuse("TOO_SLOW", f"the header was not complete after {HEADER_S:g} s")
        else:
            self.transport.close()

    def _refuse(self, code: str, detail: str) -> None:
        """Answer without the app, and close."""
        self._go_on()
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.close()  # in the middle of another answer
        if self.transport.is_closing():
            return
        request_id = f"req_{secrets.token_hex(8)}"
        content = json.dumps({**problem_body(code, detail), "request_id": request_id}).encode()
        lines = (
            f"HTTP/1.1 {problem(code).status} {problem(code).title}",
            f"Content-Type: {MEDIA_TYPE}",
            f"Content-Length: {len(content)}",
            f"Request-Id: {request_id}",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        )
        self.transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + content)
        self.transport.close()
