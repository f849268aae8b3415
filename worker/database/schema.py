"""Bringing a database to the newest schema, and waiting for another process to do it."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from worker.database.engine import Database, DatabaseUnavailable

MIGRATIONS: Final = Path(__file__).parent / "migrations"
_ADVISORY_LOCK: Final = 7_201_954
logging.getLogger("alembic").setLevel(logging.WARNING)


def upgrade(database: Database) -> None:
    """Apply every migration that is missing; processes that do so at the same time wait for each other."""
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def wait_for_schema(database: Database, timeout_s: float) -> None:
    """Return once the schema is the newest.

    Raises:
        DatabaseUnavailable: it is not after ``timeout_s``.
    """
    head = ScriptDirectory.from_config(_config()).get_current_head()
    deadline = time.monotonic() + timeout_s
    found: str | None = None
    while time.monotonic() < deadline:
        try:
            with database.read() as connection:
                found = MigrationContext.configure(connection).get_current_revision()
        except DatabaseUnavailable:
            found = None
        if found == head:
            return
        time.sleep(0.2)
    raise DatabaseUnavailable(
        f"the database's schema is {found or 'missing'}, this program needs {head}; start the API, which upgrades it"
    )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config
