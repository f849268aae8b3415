"""Who is asking, and what they may.

Keys read ``mpk_<id>_<secret>``; the database knows the SHA-256 of the 256-bit secret and nothing else.  Without
keys (loopback only) everybody is the tenant ``default`` with every scope.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, get_args

from fastapi import Depends, Request
from sqlalchemy import Connection, Row, insert, or_, select, update

from api.errors import ApiError
from api.schemas import KeyRequest, Scope
from api.service import Caller, ServiceDep
from worker.database.engine import now
from worker.database.tables import keys

PREFIX: Final = "mpk"
ALL_SCOPES: Final = tuple(get_args(Scope))
CACHE_S: Final = 5.0
"""How long a revoked key may still work in this process."""
_CACHED: Final = 10_000
_USED_EVERY_S: Final = 60


ANYBODY: Final = Caller("default", "", frozenset(ALL_SCOPES))


def create_key(connection: Connection, request: KeyRequest) -> tuple[Row[Any], str]:
    """Store a new key; returns its row and the key itself, which cannot be had again."""
    secret = secrets.token_urlsafe(32)
    row = connection.execute(
        insert(keys)
        .values(
            id=secrets.token_hex(8), tenant=request.tenant, name=request.name, secret_sha256=_digest(secret),
            scopes=list(request.scopes), created_at=now(),
            expires_at=None if request.expires_in_s is None else now() + request.expires_in_s,
        )
        .returning(*keys.c)
    ).one()  # fmt: skip
    return row, f"{PREFIX}_{row.id}_{secret}"


def first_key(connection: Connection) -> str | None:
    """Make the key of a new installation; None when there is one already."""
    if connection.execute(select(keys.c.id).limit(1)).one_or_none() is not None:
        return None
    return create_key(connection, KeyRequest(name="first key", scopes=list(ALL_SCOPES)))[1]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _look_up(connection: Connection, key: str) -> Row[Any] | None:
    """The living key's row; ``stale``: its last use was noted too long ago."""
    parts = key.split("_", 2)
    if len(parts) != 3 or parts[0] != PREFIX:
        return None
    alive = (keys.c.revoked_at.is_(None), or_(keys.c.expires_at.is_(None), keys.c.expires_at > now()))
    stale = or_(keys.c.last_used_at.is_(None), keys.c.last_used_at < now() - _USED_EVERY_S).label("stale")
    row = connection.execute(select(keys, stale).where(keys.c.id == parts[1], *alive)).one_or_none()
    matches = row is not None and hmac.compare_digest(row.secret_sha256, _digest(parts[2]))
    return row if matches else None


async def caller_of(request: Request, service: ServiceDep) -> Caller:
    """Raises UNAUTHENTICATED without a valid key, RATE_LIMITED beyond its limit."""
    caller = ANYBODY
    if service.needs_key:
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not key:
            raise ApiError("UNAUTHENTICATED", "the request has no API key", headers={"WWW-Authenticate": "Bearer"})
        cached = service.verified.get(key)
        if cached is not None and cached[0] > time.monotonic():
            caller = cached[1]
        else:
            caller = await _verify(service, key.strip())
    allowance = service.limiter.ask(caller.key_id or "anybody")
    if allowance is not None:
        request.scope.setdefault("narrowcast.headers", {}).update(allowance.headers())
        if allowance.wait_s:
            wait = {"Retry-After": str(max(1, round(allowance.wait_s)))}
            raise ApiError(
                "RATE_LIMITED", f"more than {allowance.limit} requests a minute", headers=wait, limit=allowance.limit
            )
    return caller


async def _verify(service: ServiceDep, key: str) -> Caller:
    row = await service.read(lambda c: _look_up(c, key))
    if row is None:
        raise ApiError(
            "UNAUTHENTICATED", "the API key is unknown, expired or revoked", headers={"WWW-Authenticate": "Bearer"}
        )
    if row.stale:
        used = update(keys).where(keys.c.id == row.id).values(last_used_at=now())
        await service.write(lambda c: c.execute(used))
    found = Caller(row.tenant, row.id, frozenset(row.scopes))
    service.verified[key] = (time.monotonic() + CACHE_S, found)
    while len(service.verified) > _CACHED:
        service.verified.popitem(last=False)
    return found


def need(scope: str) -> Callable[[Request, ServiceDep], Awaitable[Caller]]:
    """A dependency: the caller, who must have the scope."""

    async def check(request: Request, service: ServiceDep) -> Caller:
        caller = await caller_of(request, service)
        if scope not in caller.scopes and "admin" not in caller.scopes:
            raise ApiError("FORBIDDEN", f"this needs a key with the scope {scope!r}")
        return caller

    return check


BlobWriter = Annotated[Caller, Depends(need("blobs:write"))]
ModelReader = Annotated[Caller, Depends(need("models:read"))]
ModelWriter = Annotated[Caller, Depends(need("models:write"))]
JobReader = Annotated[Caller, Depends(need("jobs:read"))]
JobWriter = Annotated[Caller, Depends(need("jobs:write"))]
ResultReader = Annotated[Caller, Depends(need("artifacts:read"))]
HookWriter = Annotated[Caller, Depends(need("webhooks:write"))]
Admin = Annotated[Caller, Depends(need("admin"))]
