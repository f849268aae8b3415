"""Keeps a few processes running together: starts them, starts them again when they die, stops them all.

Members stay in the supervisor's process group, and the kernel ends them when the supervisor dies, however it dies.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.processes import die_with_parent

LOG: Final = logging.getLogger("narrowcast.serve")
DEATHS: Final = 5
DEATHS_WITHIN_S: Final = 60.0
TICK_S: Final = 0.1


@dataclass
class Member:
    """A process to keep running; ``grace_s`` is how long it may take to stop."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float
    running: subprocess.Popen[bytes] | None = None
    deaths: list[float] = field(default_factory=list)

    def start(self) -> None:
        parent = os.getpid()
        self.running = subprocess.Popen(
            self.command,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(parent, signal.SIGKILL),  # this process has one thread
        )

    @property
    def pid(self) -> int:
        return self.running.pid if self.running else 0


class Supervisor:
    """Runs its members in the order given and stops them in reverse."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._stop = False

    def run(self, on_tick: Callable[[], None]) -> int:
        """Until SIGINT or SIGTERM (0), or until a member dies again and again (3)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            for member in self._members:
                member.start()
            while not self._stop:
                if not all(self._keep(member) for member in self._members):
                    return 3
                on_tick()
                time.sleep(TICK_S)
            return 0
        finally:
            self._stop_all()

    def _on_signal(self, *_: object) -> None:
        self._stop = True

    def _keep(self, member: Member) -> bool:
        """Start the member again when it is gone; False when it keeps dying."""
        if member.running is None or member.running.poll() is None:
            return True
        if self._stop:
            return True
        moment = time.monotonic()
        member.deaths = [one for one in member.deaths if moment - one < DEATHS_WITHIN_S] + [moment]
        LOG.warning("%s ended with status %s", member.name, member.running.returncode)
        if len(member.deaths) >= DEATHS:
            LOG.error("%s died %d times within a minute; giving up", member.name, DEATHS)
            return False
        time.sleep(min(2.0, 0.1 * 2 ** len(member.deaths)))
        member.start()
        return True

    def _stop_all(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for member in reversed(self._members):
            running = member.running
            if running is None or running.poll() is not None:
                continue
            running.terminate()
            try:
                running.wait(member.grace_s)
            except subprocess.TimeoutExpired:
                LOG.warning("%s takes longer than %g s to stop and is killed", member.name, member.grace_s)
                running.kill()
                running.wait()
