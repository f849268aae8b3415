"""Workers' heartbeat rows: who is alive, for readiness and figures."""

from __future__ import annotations

import logging
import os
from typing import Final

from sqlalchemy import delete

from worker.database.engine import Database, DatabaseUnavailable, insert_or_ignore, now
from worker.database.tables import workers
from worker.processes import machine_memory
from worker.settings import Settings

LOG: Final = logging.getLogger("narrowcast.worker")


def write_beat(database: Database, settings: Settings, name: str) -> None:
    """Say that this worker is alive; a database that is away is only logged."""
    facts = {"concurrency": settings.concurrency, "memory": machine_memory(), "pid": os.getpid()}
    try:
        with database.write() as connection:
            add = insert_or_ignore(connection.dialect)
            connection.execute(
                add(workers)
                .values(id=name, device=settings.device, started_at=now(), beat_at=now(), facts=facts)
                .on_conflict_do_update(index_elements=["id"], set_={"beat_at": now()})
            )
    except DatabaseUnavailable as error:
        LOG.warning("heartbeat not written: %s", error)


def drop_beat(database: Database, name: str) -> None:
    """Say that this worker is leaving."""
    try:
        with database.write() as connection:
            connection.execute(delete(workers).where(workers.c.id == name))
    except DatabaseUnavailable as error:
        LOG.warning("heartbeat not removed: %s", error)
