"""The pulse of a worker's consumer: its heartbeat row, and a cure for a deafness of Celery's.

The timer ticks in the consumer's own event loop, so a loop that hangs shows no pulse.  A loop that runs may still
be deaf (kombu 5.7.0): when the broker is down at the moment a job ends, the acknowledgement is lost, the message
counts as being worked on for ever, and with one message at a time no other is asked for.  Such a consumer is
made to connect anew, which forgets the message; the broker delivers it again later, and a claim makes that harmless.
"""

from __future__ import annotations

from typing import Any, Final

from celery import bootsteps
from celery.worker import state

from worker.database.beats import drop_beat, write_beat
from worker.database.engine import Database
from worker.settings import Settings

PATIENCE_TICKS: Final = 2
"""How many ticks in a row have to look deaf, as an acknowledgement may be on its way."""


def pulse_step(settings: Settings) -> type[bootsteps.StartStopStep]:
    """The consumer's step that beats, with these settings."""

    class Pulse(bootsteps.StartStopStep):  # type: ignore[misc]
        requires = {"celery.worker.consumer.tasks:Tasks"}  # noqa: RUF012 - Celery's way to say it

        def __init__(self, parent: Any, **options: Any) -> None:
            super().__init__(parent, **options)
            self.worker = str(parent.hostname)
            self.timer: Any = None
            self.deaf_ticks = 0

        def start(self, parent: Any) -> None:
            self.deaf_ticks = 0
            _beat(settings, self.worker)
            self.timer = parent.timer.call_repeatedly(settings.worker_beat_s, self._tick, (parent,))

        def stop(self, _: Any) -> None:
            if self.timer is not None:
                self.timer.cancel()

        def shutdown(self, _: Any) -> None:
            _beat(settings, self.worker, gone=True)

        def _tick(self, parent: Any) -> None:
            self.deaf_ticks = self.deaf_ticks + 1 if is_deaf(parent) else 0
            if self.deaf_ticks >= PATIENCE_TICKS:
                raise ConnectionResetError("an acknowledgement was lost with the broker; connecting anew")
            _beat(settings, self.worker)

    return Pulse


def is_deaf(consumer: Any) -> bool:
    """Whether a message counts as unacknowledged although no request is being worked on."""
    qos = consumer.task_consumer.channel.qos
    return len(qos._delivered) > len(qos._dirty) and not state.reserved_requests


def _beat(settings: Settings, name: str, *, gone: bool = False) -> None:
    """Write the worker's row over a connection of its own: this process forks, so none may stay open."""
    database = Database(settings.database, pooled=False)
    try:
        if gone:
            drop_beat(database, name)
        else:
            write_beat(database, settings, name)
    finally:
        database.close()
