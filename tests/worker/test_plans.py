"""The queries that are asked all the time go through an index, whatever the tables have grown to."""

from __future__ import annotations

from typing import Any

import pytest
from alembic import command
from sqlalchemy import event, inspect, select

from api.pages import newest_first, pack
from tests.service_kit import Desk
from worker import dispatcher
from worker.client import Doorbell, Relay
from worker.database import contents, submit
from worker.database.schema import _config, upgrade
from worker.database.sweep import SweepRules, sweep
from worker.database.tables import jobs, metadata
from worker.supervise import run_job
from worker.sweeper import Chores

SMALL = {"workers", "outbox"}
"""Tables that hold a row per worker, or none for long."""
WHOLE = {"SCAN blobs", "SCAN uploads USING COVERING INDEX sqlite_autoindex_uploads_1"}
"""What retention reads once a minute: every blob, and the names of the uploads."""


@pytest.fixture
def plans(sqlite_desk: Desk) -> dict[str, list[str]]:
    """Statement -> plan, filled as statements run."""
    found: dict[str, list[str]] = {}

    @event.listens_for(sqlite_desk.database.engine, "after_cursor_execute")
    def explain(_: Any, cursor: Any, statement: str, values: Any, __: Any, many: bool) -> None:
        if statement.startswith(("SELECT", "UPDATE", "DELETE")) and statement not in found:
            plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", values[0] if many else values)
            found[statement] = [row[3] for row in plan]

    return found


def slow(plan: list[str]) -> list[str]:
    return [
        step
        for step in plan
        if "TEMP B-TREE" in step
        or (step.startswith("SCAN") and step != "SCAN CONSTANT ROW" and step.split()[1] not in SMALL)
    ]


def test_no_frequent_query_reads_a_whole_table(sqlite_desk: Desk, plans: dict[str, list[str]]) -> None:
    desk = sqlite_desk
    job = desk.job()
    doorbell = Doorbell(desk.settings)
    chores = Chores(desk.settings, desk.database, desk.storage, doorbell)
    assert dispatcher._next(desk.database, desk.settings) == job
    chores.sweep_once()
    Relay(desk.database, doorbell).relay_once()
    run_job(desk.station(), job)
    chores.deliver_once()
    chores.clear_once()
    with desk.database.write() as connection:
        submit.count_open(connection, "default")
        submit.events_after(connection, job, 1)
        submit.find_success(connection, "default", "x")
        contents.stored_bytes(connection, "default")
        mine = select(jobs).where(jobs.c.tenant == "default")
        for query in (mine, mine.where(jobs.c.state == "QUEUED")):
            for token in (None, pack([1.0, "x"])):
                newest_first(connection, query, jobs, 50, token)
        sweep(connection, SweepRules(3, 1.0, 1e9, 1.0, ("cpu",)))
    assert len(plans) > 30
    found = {statement: steps for statement, plan in plans.items() if (steps := set(slow(plan)) - WHOLE)}
    assert found == {}


def test_open_jobs_are_counted_from_an_index_alone(sqlite_desk: Desk, plans: dict[str, list[str]]) -> None:
    with sqlite_desk.database.read() as connection:
        submit.count_open(connection, "default")
    [plan] = [plan for statement, plan in plans.items() if "count" in statement]
    assert plan == ["SEARCH jobs USING COVERING INDEX ix_jobs_tenant_state (tenant=? AND state=?)"]


def test_the_indexes_come_and_go_by_migration(desk: Desk) -> None:
    def names() -> set[str]:
        with desk.database.read() as connection:
            found = inspect(connection)
            return {str(one["name"]) for table in metadata.tables for one in found.get_indexes(table)}

    wanted = names()
    with desk.database.write() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    assert wanted - names() >= {"ix_jobs_tenant_state", "ix_blobs_place"}
    upgrade(desk.database)
    assert names() == wanted
