"""One run of the engine: a child process that was prepared in advance, watched while it works.

Nothing of a run happens in the worker itself, so a native crash, a hang or too much memory costs that child and
nothing else.  ``converter.isolation.IsolatedChild`` is the one place that starts it.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from converter.isolation import ChildLimits, IsolatedChild, Outcome
from worker.contract import Progress
from worker.lease import Lease
from worker.processes import kill_strays, machine_memory, resident_bytes
from worker.settings import Settings

_MEMORY_SHARE: Final = 0.8


class Stopped(enum.Enum):
    """Why the watch ended a run before its own end."""

    NO = "no"
    CANCEL = "cancel"
    LOST = "lost"
    MEMORY = "memory"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended and what it took."""

    outcome: Outcome
    stopped: Stopped
    peak_rss: int
    stage: str
    memory_limit: int


class Runner:
    """Runs requests one after another, each in a child of its own."""

    def __init__(self, settings: Settings, *, owns_children: bool = False) -> None:
        """``owns_children``: every other child of this process is a leftover of a run and may be killed."""
        self._settings = settings
        self._owns_children = owns_children
        self._prepared: IsolatedChild | None = None
        self.memory_limit = settings.memory_limit_bytes or int(machine_memory() * _MEMORY_SHARE)

    def prepare(self) -> None:
        """Start the next child, which loads the engine and waits; nothing happens when one waits already."""
        if self._prepared is not None and self._prepared.alive:
            return
        if self._prepared is not None:
            self._prepared.kill()
        limits = ChildLimits(file_size=self._settings.file_size_limit_bytes)
        command = self._settings.child_command
        child = IsolatedChild(limits, command) if command else IsolatedChild(limits)
        self._prepared = child.start()

    def close(self) -> None:
        if self._prepared is not None:
            self._prepared.kill()
            self._prepared = None

    def run(self, request: Mapping[str, Any], folder: Path, lease: Lease, deadline_s: float) -> Ran:
        """Run one request; cancel, lost lease, memory and deadline end it with its whole process group."""
        self.prepare()
        child, self._prepared = self._prepared, None
        assert child is not None
        watch = _Watch(child, lease, self._settings, self.memory_limit, deadline_s)
        watch.start()
        try:
            outcome = child.run(request, folder, _listener(lease))
        finally:
            watch.stop()
            child.kill()
            if self._owns_children:
                kill_strays(keep=frozenset())
        return Ran(outcome, watch.stopped, watch.peak_rss, lease.stage, self.memory_limit)


def _listener(lease: Lease) -> Callable[[Mapping[str, Any]], None]:
    def listen(event: Mapping[str, Any]) -> None:
        if event.get("event") == "progress":
            lease.note(Progress(str(event.get("stage", "")), _count(event.get("done")), _count(event.get("total"))))
        elif event.get("event") == "warning":
            lease.warn(str(event.get("message", "")))

    return listen


def _count(value: object) -> int:
    return max(0, int(value)) if isinstance(value, int | float) else 0


class _Watch(threading.Thread):
    """Ends the child when it must end: every tick looks at the lease, the clock and the child's memory."""

    def __init__(
        self, child: IsolatedChild, lease: Lease, settings: Settings, memory_limit: int, deadline_s: float
    ) -> None:
        super().__init__(name=f"watch-{child.pid}", daemon=True)
        self.stopped = Stopped.NO
        self.peak_rss = 0
        self._child = child
        self._lease = lease
        self._settings = settings
        self._memory_limit = memory_limit
        self._deadline = time.monotonic() + deadline_s
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.is_set():
            self.stopped = self._verdict()
            if self.stopped in (Stopped.CANCEL, Stopped.DEADLINE):
                return self._child.terminate(self._settings.stop_grace_s)
            if self.stopped is not Stopped.NO:
                return self._child.kill()
            self._over.wait(self._settings.watch_s)
        return None

    def _verdict(self) -> Stopped:
        self.peak_rss = max(self.peak_rss, resident_bytes(self._child.pid))
        if self._lease.lost:
            return Stopped.LOST
        if self.peak_rss > self._memory_limit:
            return Stopped.MEMORY
        if time.monotonic() > self._deadline:
            return Stopped.DEADLINE
        return Stopped.CANCEL if self._lease.canceled else Stopped.NO


def engine_threads(settings: Settings) -> int:
    """Threads one run may use: the machine's cores, divided among the jobs that run at the same time."""
    cores = len(os.sched_getaffinity(0))
    return settings.threads or max(1, cores // settings.concurrency)
