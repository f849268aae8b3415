"""Waiting for news of jobs without a thread or a query per waiter.

All waiters of one API process share one query over the jobs they follow, a few times a second; each is woken
when its job's event number has grown.  Without waiters nothing is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import anyio
from sqlalchemy import select

from worker.database.engine import Database, DatabaseUnavailable
from worker.database.tables import jobs

LOG: Final = logging.getLogger("narrowcast.api")
QUERY_SIZE: Final = 500


@dataclass
class _Followed:
    """A job somebody waits for."""

    number: int = 0
    waiters: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


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
            try:
                numbers = await anyio.to_thread.run_sync(self._numbers, names[start : start + QUERY_SIZE])
            except DatabaseUnavailable as error:
                LOG.warning("no news of jobs: %s", error)
                return
            for name, number in numbers.items():
                self._tell(name, number)

    def _tell(self, name: str, number: int) -> None:
        one = self._followed.get(name)
        if one is not None and number > one.number:
            one.number = number
            one.news.set()
            one.news = asyncio.Event()

    def _numbers(self, names: list[str]) -> dict[str, int]:
        with self._database.read() as connection:
            rows = connection.execute(select(jobs.c.id, jobs.c.last_event).where(jobs.c.id.in_(names)))
            return {row.id: row.last_event for row in rows}
