"""The task: a thin shell around ``supervise.run_job``."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final

from worker.database.engine import Database, DatabaseUnavailable
from worker.runner import Runner
from worker.settings import Settings
from worker.storage import LocalStorage
from worker.supervise import Station, run_job

LOG: Final = logging.getLogger("narrowcast.worker")


class Bench:
    """The station of a pool process, opened after the fork and kept between jobs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._station: Station | None = None

    def open(self) -> Station:
        """Set the station up and start the first child, so that a job finds the engine loaded."""
        if self._station is None:
            settings = self.settings
            self._station = Station(
                settings,
                Database(settings.database),
                LocalStorage(settings.store_dir),
                Runner(settings, owns_children=True),
                f"{settings.device}-{os.getpid()}@{socket.gethostname()}",
            )
            self._station.runner.prepare()
        return self._station

    def close(self) -> None:
        if self._station is not None:
            self._station.runner.close()
            self._station.database.close()
            self._station = None


def run(bench: Bench, job_id: str) -> None:
    """Run one job.  Whatever happens is on the job's row; the message is done with in any case."""
    station = bench.open()
    try:
        LOG.info("job %s: %s", job_id, run_job(station, job_id))
    except DatabaseUnavailable as error:
        LOG.warning("job %s: left to the sweeper: %s", job_id, error)
    except MemoryError:
        LOG.exception("job %s: the worker itself ran out of memory", job_id)
    station.runner.prepare()
