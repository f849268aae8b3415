"""Figures for Prometheus: requests of this process, and the queue as the database has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from starlette.types import Scope

from worker.contract import State
from worker.database.engine import Database, DatabaseUnavailable, now
from worker.database.tables import deliveries, jobs, outbox, workers

REQUESTS: Final = Counter("narrowcast_requests", "Answered requests", ["method", "route", "status"], registry=None)
SECONDS: Final = Histogram(
    "narrowcast_request_seconds", "Time to the first byte of an answer", ["method", "route"], registry=None,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 120),
)  # fmt: skip
RECEIVED: Final = Counter("narrowcast_received_bytes", "Bytes of uploads written", registry=None)


def observe_request(scope: Scope, status: int, seconds: float) -> None:
    route = getattr(scope.get("route"), "path", "none")
    REQUESTS.labels(scope["method"], route, str(status)).inc()
    SECONDS.labels(scope["method"], route).observe(seconds)


class Queue(Collector):
    """Gauges read from the tables when somebody scrapes."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self._database = database
        self._lease_s = lease_s

    def collect(self) -> Iterator[GaugeMetricFamily]:
        up = GaugeMetricFamily("narrowcast_database_up", "Whether the database answered this scrape")
        try:
            yield from self._gauges()
            up.add_metric([], 1)
        except DatabaseUnavailable:
            up.add_metric([], 0)
        yield up

    def _gauges(self) -> list[GaugeMetricFamily]:
        by_state = GaugeMetricFamily("narrowcast_jobs", "Jobs on record", labels=["state", "device"])
        oldest = GaugeMetricFamily("narrowcast_oldest_queued_seconds", "Age of the longest waiting job")
        alive = GaugeMetricFamily("narrowcast_workers", "Workers whose consumer loop is alive", labels=["device"])
        unsent = GaugeMetricFamily("narrowcast_outbox", "Jobs not yet announced to the broker")
        hooks = GaugeMetricFamily("narrowcast_deliveries_pending", "Webhook deliveries not yet made")
        with self._database.read() as connection:
            for row in connection.execute(
                select(jobs.c.state, jobs.c.device, func.count()).group_by(jobs.c.state, jobs.c.device)
            ):
                by_state.add_metric([row[0], row[1]], row[2])
            age = select(now() - func.min(jobs.c.created_at)).where(jobs.c.state == State.QUEUED)
            oldest.add_metric([], connection.execute(age).scalar() or 0)
            living = select(workers.c.device, func.count()).where(workers.c.beat_at > now() - self._lease_s)
            for row in connection.execute(living.group_by(workers.c.device)):
                alive.add_metric([row[0]], row[1])
            unsent.add_metric([], connection.execute(select(func.count()).select_from(outbox)).scalar_one())
            pending = select(func.count()).select_from(deliveries).where(deliveries.c.state == "pending")
            hooks.add_metric([], connection.execute(pending).scalar_one())
        return [by_state, oldest, alive, unsent, hooks]


def registry_of(database: Database, lease_s: float) -> CollectorRegistry:
    registry = CollectorRegistry()
    for one in (REQUESTS, SECONDS, RECEIVED, Queue(database, lease_s)):
        registry.register(one)
    return registry
