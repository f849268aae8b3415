"""A claim kept alive: renewed on a thread, watched for a cancel, and fed with progress."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from sqlalchemy import Connection

from worker.contract import Claim, Progress
from worker.database import leases
from worker.database.engine import Database, DatabaseUnavailable
from worker.settings import Settings

LOG: Final = logging.getLogger("narrowcast.lease")


class LeaseLost(Exception):
    """Another worker has the job, or it is gone; nothing of this run may be published."""


class CancelRequested(Exception):
    """The job's owner wants it to stop."""


class Lease:
    """Renews the claim until stopped.  A database that is away is waited for, not a reason to stop."""

    def __init__(self, database: Database, claim: Claim, settings: Settings) -> None:
        self.claim = claim
        self.lost = False
        self.canceled = claim.cancel_requested
        self.stage = "fetch"
        self._database = database
        self._settings = settings
        self._lock = threading.Lock()
        self._progress: list[Progress] = []
        self._messages: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{claim.job_id}", daemon=True)

    def start(self) -> Lease:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def note(self, progress: Progress) -> None:
        """Remember how far the run is; of one stage only the newest is kept until it is written."""
        with self._lock:
            self.stage = progress.stage
            if self._progress and self._progress[-1].stage == progress.stage:
                self._progress.pop()
            self._progress.append(progress)

    def warn(self, message: str) -> None:
        with self._lock:
            if len(self._messages) < leases.MAX_EVENT_MESSAGES:
                self._messages.append(message)

    def check(self) -> None:
        """Raises LeaseLost or CancelRequested; for the steps between which a run can stop."""
        if self.lost:
            raise LeaseLost(self.claim.job_id)
        if self.canceled:
            raise CancelRequested(self.claim.job_id)

    def flush(self, connection: Connection) -> None:
        """Write what was noted, in the caller's transaction."""
        with self._lock:
            progress, self._progress = self._progress, []
            messages, self._messages = self._messages, []
        if (progress or messages) and not leases.report(connection, self.claim, progress, messages):
            self.lost = True

    def _run(self) -> None:
        beat_at = time.monotonic() + self._settings.beat_s
        look_at = time.monotonic() + self._settings.cancel_poll_s
        while not self._stop.wait(self._settings.watch_s) and not self.lost:
            try:
                moment = time.monotonic()
                if self._progress or self._messages:
                    with self._database.write() as connection:
                        self.flush(connection)
                if moment >= beat_at:
                    beat_at = moment + self._settings.beat_s
                    with self._database.write() as connection:
                        self._learn(leases.extend(connection, self.claim, self._settings.lease_s))
                elif moment >= look_at:
                    look_at = moment + self._settings.cancel_poll_s
                    with self._database.read() as connection:
                        self._learn(leases.look(connection, self.claim))
            except DatabaseUnavailable as error:
                beat_at = time.monotonic() + min(1.0, self._settings.beat_s)
                LOG.warning("job %s: lease not renewed: %s", self.claim.job_id, error)
            except Exception:
                LOG.exception("job %s: lease round failed", self.claim.job_id)

    def _learn(self, beat: leases.Beat) -> None:
        self.lost = self.lost or not beat.held
        self.canceled = self.canceled or beat.cancel_requested
