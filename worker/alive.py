"""``python -m worker.alive``: exit 0 when a worker of this host has shown its pulse lately, for health checks."""

from __future__ import annotations

import socket
import sys
from typing import Final

from sqlalchemy import func, select

from worker.database.engine import Database, DatabaseUnavailable, now
from worker.database.tables import workers
from worker.settings import Settings, read_settings

MISSED_BEATS: Final = 4


def is_alive(settings: Settings, host: str) -> bool:
    """Whether a consumer loop on the host has written its row within the last few beats."""
    database = Database(settings.database, pooled=False)
    recent = workers.c.beat_at > now() - MISSED_BEATS * settings.worker_beat_s
    query = select(func.count()).select_from(workers).where(recent, workers.c.id.endswith(f"@{host}", autoescape=True))
    try:
        with database.read() as connection:
            return bool(connection.execute(query).scalar_one())
    except DatabaseUnavailable:
        return False
    finally:
        database.close()


if __name__ == "__main__":
    sys.exit(0 if is_alive(read_settings(), socket.gethostname()) else 1)
