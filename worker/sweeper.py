"""The chores: lost work, expired things, due webhooks.  In the API process, or in one of their own.

Every chore is a series of conditional statements, so that several processes may do them at the same time.
"""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sqlalchemy import func, select

from worker.client import BrokerUnavailable, Doorbell, Relay
from worker.contract import DEVICES, State
from worker.database.engine import Database, DatabaseUnavailable
from worker.database.schema import wait_for_schema
from worker.database.sweep import SweepRules, Swept, sweep
from worker.database.tables import jobs
from worker.deliveries import deliver_due
from worker.retention import clear
from worker.settings import Settings, read_settings
from worker.storage import LocalStorage, Storage

LOG: Final = logging.getLogger("narrowcast.sweeper")
SCHEMA_WAIT_S: Final = 60
PULSE: Final = Path(tempfile.gettempdir()) / "narrowcast-sweeper"
"""Touched after every sweep of the sweeper's own process, for its health check."""


class Chores:
    """Each chore on a thread of its own, so that a slow one holds up no other."""

    def __init__(self, settings: Settings, database: Database, storage: Storage, doorbell: Doorbell) -> None:
        self._settings = settings
        self._database = database
        self._storage = storage
        self._doorbell = doorbell
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, after_sweep: Callable[[], object] = lambda: None) -> None:
        settings = self._settings

        def sweep_and_tell() -> None:
            self.sweep_once()
            after_sweep()

        for name, chore, pause in (
            ("sweep", sweep_and_tell, settings.sweep_s),
            ("retention", self.clear_once, settings.retention_s),
            ("webhooks", self.deliver_once, settings.webhook_poll_s),
        ):
            thread = threading.Thread(target=self._repeat, args=(name, chore, pause), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=5)

    def sweep_once(self) -> Swept:
        settings = self._settings
        rules = SweepRules(
            settings.max_attempts, settings.requeue_after_s, settings.queue_ttl_s, settings.keep_jobs_s,
            self._devices_to_announce(),
        )  # fmt: skip
        with self._database.write() as connection:
            swept = sweep(connection, rules)
        if swept != Swept():
            LOG.info("%s", swept)
        return swept

    def clear_once(self) -> None:
        clear(self._database, self._storage, self._settings)

    def deliver_once(self) -> None:
        while deliver_due(self._database, self._settings):
            pass

    def _devices_to_announce(self) -> tuple[str, ...]:
        """Devices whose queue is shorter than the row of jobs that wait: some messages are lost, or on their way."""
        with self._database.read() as connection:
            counted = connection.execute(
                select(jobs.c.device, func.count()).where(jobs.c.state == State.QUEUED).group_by(jobs.c.device)
            ).all()
        return tuple(device for device, count in counted if device in DEVICES and self._short(device, count))

    def _short(self, device: str, count: int) -> bool:
        try:
            return self._doorbell.waiting(device) < count
        except BrokerUnavailable:
            return False

    def _repeat(self, name: str, chore: Callable[[], object], pause_s: float) -> None:
        while not self._stop.wait(pause_s):
            try:
                chore()
            except DatabaseUnavailable as error:
                LOG.warning("%s: %s", name, error)
            except Exception:
                LOG.exception("%s failed; it is tried again", name)


def main() -> None:
    """A process that does the chores and relays announcements, until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = read_settings()
    database = Database(settings.database)
    wait_for_schema(database, SCHEMA_WAIT_S)
    doorbell = Doorbell(settings)
    chores = Chores(settings, database, LocalStorage(settings.store_dir), doorbell)
    relay = Relay(database, doorbell).start()
    chores.start(after_sweep=PULSE.touch)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    over.wait()
    chores.stop()
    relay.stop()


if __name__ == "__main__":
    main()
