"""What must be true of a service whatever was killed: the checker of the fault tests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from worker.contract import OPEN, State
from worker.database.engine import Database
from worker.database.tables import artifacts, attempts, events, jobs
from worker.publish_names import set_name
from worker.storage import LocalStorage


def broken_invariants(database: Database, store: Path, *, ended: bool = True) -> list[str]:
    """Every broken promise, in words; empty when all is well.

    ``ended``: every job must have come to its end.
    """
    found: list[str] = []
    with database.read() as connection:
        rows = connection.execute(select(jobs)).all()
        files = connection.execute(select(artifacts)).all()
        for row in rows:
            found += _events(connection, row)
            committed = select(func.count()).select_from(attempts)
            mine = (attempts.c.job_id == row.id, attempts.c.outcome == "SUCCEEDED")
            successes = connection.execute(committed.where(*mine)).scalar_one()
            if successes != (row.state == State.SUCCEEDED):
                found.append(f"job {row.id} is {row.state} and has {successes} successful attempts")
    if ended:
        found += [f"job {row.id} is still {row.state}" for row in rows if row.state in OPEN]
    found += _sets(rows, files, store)
    return found


def _events(connection: Any, row: Any) -> list[str]:
    told = connection.execute(select(events).where(events.c.job_id == row.id).order_by(events.c.number)).all()
    numbers = [one.number for one in told]
    ends = [one for one in told if one.kind == "state" and one.body["state"] in ("SUCCEEDED", "FAILED", "CANCELED")]
    found = []
    if numbers != list(range(1, row.last_event + 1)):
        found.append(f"job {row.id} has events {numbers}, not 1 to {row.last_event}")
    if len(ends) > 1:
        found.append(f"job {row.id} ended {len(ends)} times")
    return found


def _sets(rows: Any, files: Any, store: Path) -> list[str]:
    """#SUCCEEDED rows = #committed sets; every file is whole; nothing belongs to a job that did not succeed."""
    found = []
    storage = LocalStorage(store)
    committed = {row.id: set_name(row.id, row.published_fence) for row in rows if row.state == State.SUCCEEDED}
    with_files = {one.job_id for one in files}
    if with_files != set(committed):
        found.append(f"jobs with files {sorted(with_files)} are not the jobs that succeeded {sorted(committed)}")
    for one in files:
        if one.job_id not in committed:
            continue
        try:
            with storage.open(f"{committed[one.job_id]}/{one.name}") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            found.append(f"file {one.name} of job {one.job_id} is missing")
            continue
        if digest != one.sha256:
            found.append(f"file {one.name} of job {one.job_id} is not what its row says")
    return found
