"""A worker without a broker: takes the next job straight from the database.

For machines where no Redis or Valkey runs.  The job table is the truth anyway; only the doorbell is missing, so a
job may wait a moment longer.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from typing import Final

from sqlalchemy import select

from worker.app import SCHEMA_WAIT_S
from worker.contract import State
from worker.database.beats import drop_beat, write_beat
from worker.database.engine import Database, DatabaseUnavailable, now
from worker.database.schema import wait_for_schema
from worker.database.tables import jobs
from worker.processes import adopt_orphans
from worker.settings import Settings, read_settings
from worker.tasks import Bench, run

LOG: Final = logging.getLogger("narrowcast.worker")
IDLE_S: Final = 0.2


def serve_worker(settings: Settings) -> None:
    """Run jobs one after another until told to stop; a running one is given back."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    database = Database(settings.database)
    wait_for_schema(database, SCHEMA_WAIT_S)
    settings.scratch_dir.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    adopt_orphans()
    name = f"{settings.device}-{os.getpid()}@{socket.gethostname()}"
    bench = Bench(settings)
    bench.open()
    beat_at = 0.0
    try:
        while True:
            if time.monotonic() >= beat_at:
                beat_at = time.monotonic() + settings.worker_beat_s
                write_beat(database, settings, name)
            job_id = _next(database, settings)
            if job_id is None:
                time.sleep(IDLE_S)
            else:
                run(bench, job_id)
    finally:
        bench.close()
        drop_beat(database, name)


def _next(database: Database, settings: Settings) -> str | None:
    """The job that has waited longest."""
    waiting = (jobs.c.state == State.QUEUED, jobs.c.device == settings.device, jobs.c.not_before <= now())
    try:
        with database.read() as connection:
            return connection.execute(
                select(jobs.c.id).where(*waiting).order_by(jobs.c.created_at).limit(1)
            ).scalar_one_or_none()
    except DatabaseUnavailable as error:
        LOG.warning("%s", error)
        return None


if __name__ == "__main__":
    serve_worker(read_settings())
