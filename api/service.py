"""What the routes share: one record, made at start, found on the app."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, TypeVar, cast

import anyio
from anyio import CapacityLimiter
from fastapi import Depends, Request
from sqlalchemy import Connection

from api.follow import Follower
from api.hashes import RunningHashes
from api.limits import RateLimiter
from worker.client import Doorbell, Relay
from worker.database.engine import Database, DatabaseUnavailable
from worker.settings import Settings
from worker.storage import Storage

T = TypeVar("T")
GLANCE_MS: Final = 20


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking: a tenant, by one of its keys, with that key's scopes."""

    tenant: str
    key_id: str
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a running API process."""

    settings: Settings
    database: Database
    storage: Storage
    doorbell: Doorbell
    relay: Relay
    follower: Follower
    limiter: RateLimiter
    needs_key: bool
    allowed_hosts: frozenset[str]
    hashes: RunningHashes = field(default_factory=RunningHashes)
    verified: OrderedDict[str, tuple[float, Caller]] = field(default_factory=OrderedDict)
    """API key -> until when it counts as verified, and whose it is."""
    glance: Database | None = None
    """SQLite only: a connection of the event loop's own, which gives up waiting for a lock after GLANCE_MS."""
    disk: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(16))
    """Threads that may touch the disk at the same time, apart from those that serve ordinary requests."""

    async def read(self, query: Callable[[Connection], T]) -> T:
        """A few rows by key.  From SQLite on the spot: a thread and the way there and back cost ten times as much."""
        if self.glance is not None:
            with contextlib.suppress(DatabaseUnavailable), self.glance.read() as connection:
                return query(connection)
        return await anyio.to_thread.run_sync(self.read_now, query)

    async def write(self, change: Callable[[Connection], T]) -> T:
        return await anyio.to_thread.run_sync(self.write_now, change)

    def read_now(self, query: Callable[[Connection], T]) -> T:
        with self.database.read() as connection:
            return query(connection)

    def write_now(self, change: Callable[[Connection], T]) -> T:
        with self.database.write() as connection:
            return change(connection)


async def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


ServiceDep = Annotated[Service, Depends(service_of)]
