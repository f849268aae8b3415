"""Waiting for news of jobs without a thread or a query per waiter.

All waiters of one API process share one query over the jobs they follow, a few times a second; each is woken
when its job's event number has grown.  Without waiters nothing is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from sqlalchemy import Row, select

from worker.database.engine import Database, DatabaseUnavailable
from worker.database.submit import events_after
from worker.database.tables import jobs

LOG: Final = logging.getLogger("narrowcast.api")
QUERY_SIZE: Final = 500
RECENT: Final = 256
"""Events of a followed job that are kept for all who read its stream."""


@dataclass
class _Followed:
    """A job somebody waits for."""

    number: int = 0
    waiters: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    recent: deque[Row[Any]] = field(default_factory=lambda: deque(maxlen=RECENT))


class Follower:
    """Knows the newest event number of every followed job."""

    def __init__(self, database: Database, interval_s: float) -> None:
        self._database = database
        self._interval_s = interval_s
        self._followed: dict[str, _Followed] = {}
        self._somebody = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="follower")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.contextmanager
    def following(self, job_id: str) -> Iterator[None]:
        """Keep an eye on the job while the block runs."""
        one = self._followed.setdefault(job_id, _Followed())
        one.waiters += 1
        self._somebody.set()
        try:
            yield
        finally:
            one.waiters -= 1
            if one.waiters == 0:
                self._followed.pop(job_id, None)

    async def news(self, job_id: str, after: int, timeout_s: float) -> bool:
        """Whether the job has an event beyond number ``after`` by the end of the timeout; only while following."""
        one = self._followed[job_id]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while one.number <= after:
                    await one.news.wait()
        return one.number > after

    def since(self, job_id: str, number: int) -> list[Row[Any]] | None:
        """The events behind ``number`` when they are all here; None: ask the database."""
        recent = self._followed[job_id].recent
        if not recent or recent[0].number > number + 1:
            return None
        return [row for row in recent if row.number > number]

    async def _run(self) -> None:
        while True:
            if not self._followed:
                self._somebody.clear()
                await self._somebody.wait()
            await self._look()
            await asyncio.sleep(self._interval_s)

    async def _look(self) -> None:
        names = list(self._followed)
        for start in range(0, len(names), QUERY_SIZE):
            known = {name: self._followed[name].number for name in names[start : start + QUERY_SIZE]}
            try:
                found = await anyio.to_thread.run_sync(self._newer, known)
            except DatabaseUnavailable as error:
                LOG.warning("no news of jobs: %s", error)
                return
            for name, rows in found.items():
                self._tell(name, rows)

    def _tell(self, name: str, rows: list[Row[Any]]) -> None:
        one = self._followed.get(name)
        if one is not None and rows[-1].number > one.number:
            one.recent.extend(rows)
            one.number = rows[-1].number
            one.news.set()
            one.news = asyncio.Event()

    def _newer(self, known: dict[str, int]) -> dict[str, list[Row[Any]]]:
        """The newest events of every job that has events beyond the known number."""
        with self._database.read() as connection:
            rows = connection.execute(select(jobs.c.id, jobs.c.last_event).where(jobs.c.id.in_(known))).all()
            changed = {row.id: row.last_event for row in rows if row.last_event > known[row.id]}
            return {
                name: events_after(connection, name, max(known[name], number - RECENT), RECENT)
                for name, number in changed.items()
            }
