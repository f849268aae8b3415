"""Announcing jobs: Celery is the doorbell, the database is the truth.

Imports Celery and Redis only when something is sent, and knows tasks by name.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, select

from converter.errors import EnvironmentFailure
from worker.broker import broker_options
from worker.contract import RUN_TASK
from worker.database.engine import Database, DatabaseUnavailable
from worker.database.tables import outbox

if TYPE_CHECKING:
    from worker.settings import Settings

LOG: Final = logging.getLogger("narrowcast.relay")
RELAY_BATCH: Final = 200


class BrokerUnavailable(EnvironmentFailure):
    """The broker does not answer; announcements wait in the outbox."""

    code = "BROKER_UNAVAILABLE"


class BrokerUnfit(EnvironmentFailure):
    """The broker answers, but would lose what it is given."""

    code = "BROKER_UNFIT"


class Doorbell:
    """Sends job ids to the queue of a device class; without a broker it keeps silent, and workers look themselves."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mute = not settings.redis_url

    @functools.cached_property
    def _app(self) -> Any:
        from celery import Celery

        app = Celery("narrowcast", broker=self._settings.redis_url, set_as_current=False)
        app.conf.update(broker_options(self._settings))
        return app

    def ring(self, job_id: str, device: str) -> None:
        """Publish one id.

        Raises:
            BrokerUnavailable: within the socket timeout, never later.
        """
        if self._mute:
            return
        try:
            self._app.send_task(RUN_TASK, args=[job_id], queue=device, ignore_result=True, retry=False)
        except Exception as error:  # kombu, redis and socket errors have no common base
            raise BrokerUnavailable(f"the broker does not take job {job_id}: {error}") from error

    def ping(self) -> None:
        """Raises BrokerUnavailable when the broker does not answer a PING."""
        self._ask("ping")

    def check_fit(self) -> None:
        """Raises BrokerUnfit when the broker may drop queued jobs to save memory, BrokerUnavailable."""
        policy = (self._ask("info", "memory") or {}).get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise BrokerUnfit(
                f"the broker's maxmemory-policy is {policy}: it would drop queued jobs; set it to noeviction"
            )

    def waiting(self, device: str) -> int:
        """How many ids wait in the device's queue; raises BrokerUnavailable."""
        return int(self._ask("llen", device) or 0)

    def _ask(self, command: str, *values: str) -> Any:
        if self._mute:
            return None
        try:
            with self._app.connection_for_write() as connection:
                return getattr(connection.default_channel.client, command)(*values)
        except Exception as error:
            raise BrokerUnavailable(f"the broker does not answer: {error}") from error

    def close(self) -> None:
        if "_app" in self.__dict__:
            self._app.close()


class Relay:
    """Moves notes from the outbox to the broker, on a thread of its own."""

    def __init__(self, database: Database, doorbell: Doorbell, idle_s: float = 0.5) -> None:
        self._database = database
        self._doorbell = doorbell
        self._idle_s = idle_s
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def start(self) -> Relay:
        self._thread.start()
        return self

    def wake(self) -> None:
        """There is something new; called after a commit."""
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=5)

    def relay_once(self) -> int:
        """Send what is in the outbox; the number of ids sent.

        A note is deleted after it was sent, so a crash in between sends it twice, which a claim makes harmless.
        """
        with self._database.read() as connection:
            rows = connection.execute(select(outbox).order_by(outbox.c.id).limit(RELAY_BATCH)).all()
        sent: list[int] = []
        try:
            for row in rows:
                self._doorbell.ring(row.job_id, row.device)
                sent.append(row.id)
        finally:
            if sent:
                with self._database.write() as connection:
                    connection.execute(delete(outbox).where(outbox.c.id.in_(sent)))
        return len(sent)

    def _run(self) -> None:
        pause = self._idle_s
        while not self._stop.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            try:
                while self.relay_once() == RELAY_BATCH:
                    pass
                pause = self._idle_s
            except (BrokerUnavailable, DatabaseUnavailable) as error:
                pause = min(pause * 2, 5.0)
                LOG.warning("%s; trying again in %.1f s", error, pause)
            except Exception:
                LOG.exception("relay round failed")
