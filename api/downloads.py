"""Files to the caller: strong ETags, ranges that can be resumed and verified."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import BinaryIO, Final
from urllib.parse import quote

import anyio
from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from api.errors import ApiError
from api.service import Service

PIECE_BYTES: Final = 2**20
DIGESTED_RANGE_BYTES: Final = 64 * 2**20
"""Ranges up to this size carry a Content-Digest; larger ones when `Want-Content-Digest` asks for it."""
REPORT_POLICY: Final = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; sandbox allow-scripts allow-downloads"  # noqa: E501
_RANGE: Final = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of known content in the store."""

    place: str
    name: str
    size: int
    sha256: str
    media_type: str


async def send_file(request: Request, service: Service, file: StoredFile, *, inline: bool = False) -> Response:
    """200, 206, 304 or 416, by the request's conditions and range.

    Raises GONE when the file is no longer in the store.
    """
    etag = f'"sha256:{file.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Repr-Digest": f"sha-256=:{_base64(bytes.fromhex(file.sha256))}:",
        "Content-Disposition": _disposition(file.name, inline=inline),
        "Cache-Control": "private, no-cache",
    }
    if file.media_type.startswith("text/html"):
        headers["Content-Security-Policy"] = REPORT_POLICY
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    wanted = request.headers.get("if-match")
    if wanted is not None and not _matches(wanted, etag):
        raise ApiError("PRECONDITION_FAILED", "the file is another one than If-Match says")
    span = _span(request, file.size, etag)
    try:
        reader = await anyio.to_thread.run_sync(service.storage.open, file.place)
    except FileNotFoundError as error:
        raise ApiError("GONE", f"{file.name} is no longer stored") from error
    start, stop = span or (0, file.size)
    if span is not None:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        if stop - start <= DIGESTED_RANGE_BYTES or "sha-256" in request.headers.get("want-content-digest", ""):
            digest = await anyio.to_thread.run_sync(_digest, reader, start, stop, limiter=service.disk)
            headers["Content-Digest"] = f"sha-256=:{_base64(digest)}:"
    headers["Content-Length"] = str(stop - start)
    status = 200 if span is None else 206
    return StreamingResponse(_pieces(service, reader, start, stop), status, headers, file.media_type)


def _span(request: Request, size: int, etag: str) -> tuple[int, int] | None:
    """The single range asked for; None: send everything.  Several ranges at once are answered with everything."""
    text = request.headers.get("range", "")
    condition = request.headers.get("if-range")
    match = _RANGE.match(text.strip())
    if match is None or match[0] == "bytes=-" or (condition is not None and condition != etag):
        return None
    first, last = match[1], match[2]
    if first:
        start, stop = int(first), min(int(last) + 1 if last else size, size)
        if last and int(last) < int(first):
            return None
    else:
        start, stop = max(0, size - int(last)), size
    if start >= stop:
        raise ApiError(
            "RANGE_NOT_SATISFIABLE", f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"},
            limit=size,
        )  # fmt: skip
    return start, stop


def _matches(given: str | None, etag: str) -> bool:
    return given is not None and (given.strip() == "*" or etag in given)


def _disposition(name: str, *, inline: bool) -> str:
    kind = "inline" if inline else "attachment"
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _digest(reader: BinaryIO, start: int, stop: int) -> bytes:
    running = hashlib.sha256()
    reader.seek(start)
    left = stop - start
    while left and (piece := reader.read(min(PIECE_BYTES, left))):
        running.update(piece)
        left -= len(piece)
    return running.digest()


async def _pieces(service: Service, reader: BinaryIO, start: int, stop: int) -> AsyncIterator[bytes]:
    try:
        await anyio.to_thread.run_sync(reader.seek, start, limiter=service.disk)
        left = stop - start
        while left:
            piece = await anyio.to_thread.run_sync(reader.read, min(PIECE_BYTES, left), limiter=service.disk)
            if not piece:
                raise OSError("the stored file is shorter than its record")
            left -= len(piece)
            yield piece
    finally:
        reader.close()
