"""One database, two kinds of transaction.

SQLite runs in WAL mode with full syncs, so that an answered 202 survives a power cut; a writing transaction
takes its lock at once (BEGIN IMMEDIATE) and waits for others instead of failing half way.  PostgreSQL is used
as it is.  Open a database after a fork, never before it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Double, Engine, create_engine, event, exc, text
from sqlalchemy.engine import Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.expression import FunctionElement

from converter.errors import EnvironmentFailure

BUSY_TIMEOUT_MS: Final = 5000
_WRITES: Final = "narrowcast_writes"


class DatabaseUnavailable(EnvironmentFailure):
    """The database is locked, down or full; nothing was changed."""

    code = "DATABASE_UNAVAILABLE"


class now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since 1970 by the database's clock: the only clock that leases and expiries know."""

    type = Double()
    inherit_cache = True


@compiles(now, "sqlite")
def _now_sqlite(*_: Any, **__: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now)
def _now_postgresql(*_: Any, **__: Any) -> str:
    return "extract(epoch from clock_timestamp())::double precision"


class Database:
    """Connections to the database at ``url``; cheap to make, opened on first use."""

    def __init__(self, url: str, *, pooled: bool = True, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> None:
        """``busy_timeout_ms`` is how long SQLite waits for a lock."""
        self.url = url
        self.engine = _make_engine(url, pooled, busy_timeout_ms)

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A reading transaction; never waits for writers."""
        with _translated(), self.engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """A writing transaction, committed at the end of the block, rolled back on any exception.

        Raises:
            DatabaseUnavailable: the lock was not to be had within the busy timeout, or the server is gone.
        """
        options = {_WRITES: True}
        with _translated(), self.engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    def close(self) -> None:
        self.engine.dispose()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (exc.OperationalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise DatabaseUnavailable(f"the database does not answer: {getattr(error, 'orig', None) or error}") from error


def _make_engine(url: str, pooled: bool, busy_timeout_ms: int) -> Engine:
    sqlite = url.startswith("sqlite")
    arguments: dict[str, Any] = {"timeout": busy_timeout_ms / 1000} if sqlite else {"connect_timeout": 5}
    sizes: dict[str, Any] = {"pool_size": 8, "max_overflow": 48, "pool_timeout": 5} if pooled else {}
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1),
        connect_args=arguments,
        json_serializer=partial(json.dumps, separators=(",", ":"), allow_nan=False),
        pool_pre_ping=not sqlite and pooled,
        **(sizes if pooled else {"poolclass": NullPool}),
    )
    if sqlite:
        event.listen(engine, "connect", partial(_prepare_sqlite, busy_timeout_ms))
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(busy_timeout_ms: int, connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # SQLAlchemy says BEGIN, see _begin_sqlite
    for pragma in (
        f"busy_timeout={busy_timeout_ms}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "journal_size_limit=67108864",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def alone(connection: Connection, name: str) -> None:
    """From here to the end of the transaction no other one is alone under this name: what is counted stays true.

    A writing transaction of SQLite is alone anyway.
    """
    if connection.dialect.name != "sqlite":
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


def insert_or_ignore(dialect: Dialect) -> Any:
    """The dialect's INSERT that knows ON CONFLICT."""
    from sqlalchemy.dialects import postgresql, sqlite

    return sqlite.insert if dialect.name == "sqlite" else postgresql.insert
