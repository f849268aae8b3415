"""Removing what has expired: first the row, in a transaction that proves nobody needs it, then the bytes."""

from __future__ import annotations

import contextlib
import logging
import shutil
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Row, delete, exc, exists, not_, select, update

from worker.contract import OPEN
from worker.database import contents
from worker.database.engine import Database, now
from worker.database.tables import (
    answers,
    artifacts,
    batches,
    blobs,
    deliveries,
    holders,
    jobs,
    models,
    uploads,
    workers,
)
from worker.publish_names import set_name
from worker.settings import Settings
from worker.storage import Storage

LOG: Final = logging.getLogger("narrowcast.retention")
BATCH: Final = 200
WORKER_KEEP_S: Final = 3600


def clear(database: Database, storage: Storage, settings: Settings) -> None:
    """One round over everything that expires."""
    _artifacts(database, storage)
    _jobs(database, storage)
    _uploads(database, settings)
    _models(database, settings)
    _blobs(database, storage, settings)
    _small(database, settings)
    _orphans(database, storage, settings)


def _artifacts(database: Database, storage: Storage) -> None:
    old = (jobs.c.artifacts_until < now(), jobs.c.pinned.is_(False), jobs.c.published_fence.is_not(None))
    with database.write() as connection:
        rows = connection.execute(select(jobs.c.id, jobs.c.published_fence).where(*old).limit(BATCH)).all()
        for row in rows:
            connection.execute(delete(artifacts).where(artifacts.c.job_id == row.id))
            connection.execute(update(jobs).where(jobs.c.id == row.id).values(published_fence=None))
    for row in rows:
        storage.delete(set_name(row.id, row.published_fence))


def _jobs(database: Database, storage: Storage) -> None:
    with database.write() as connection:
        rows = connection.execute(
            delete(jobs)
            .where(
                jobs.c.id.in_(select(jobs.c.id).where(jobs.c.expires_at < now(), jobs.c.pinned.is_(False)).limit(BATCH))
            )
            .returning(jobs.c.id, jobs.c.published_fence)
        ).all()
    for row in rows:
        if row.published_fence is not None:
            storage.delete(set_name(row.id, row.published_fence))


def _uploads(database: Database, settings: Settings) -> None:
    with database.write() as connection:
        rows = connection.execute(delete(uploads).where(uploads.c.expires_at < now()).returning(uploads.c.id)).all()
    for row in rows:
        (settings.uploads_dir / row.id).unlink(missing_ok=True)


def _models(database: Database, settings: Settings) -> None:
    with database.write() as connection:
        busy = exists().where(jobs.c.model_id == models.c.id, jobs.c.state.in_(OPEN))
        connection.execute(delete(models).where(models.c.used_at < now() - settings.keep_models_s, not_(busy)))
        connection.execute(delete(batches).where(batches.c.used_at < now() - settings.keep_models_s))


def _blobs(database: Database, storage: Storage, settings: Settings) -> None:
    with database.read() as connection:
        rows = contents.unreferenced(connection, settings.keep_blobs_s, BATCH)
    for row in rows:
        if _forget_blob(database, row, settings.keep_blobs_s):
            storage.delete(row.place)


def _forget_blob(database: Database, row: Row[Any], keep_s: float) -> bool:
    """Remove the blob's rows; False when somebody has come to need it since."""
    try:
        with database.write() as connection:
            if not contents.unreferenced(connection, keep_s, 1, only=row.sha256):
                return False
            connection.execute(delete(holders).where(holders.c.sha256 == row.sha256))
            return connection.execute(delete(blobs).where(blobs.c.sha256 == row.sha256)).rowcount == 1
    except exc.IntegrityError:
        return False


def _small(database: Database, settings: Settings) -> None:
    with database.write() as connection:
        connection.execute(delete(answers).where(answers.c.created_at < now() - settings.keep_answers_s))
        connection.execute(delete(deliveries).where(deliveries.c.finished_at < now() - settings.keep_jobs_s))
        connection.execute(delete(workers).where(workers.c.beat_at < now() - WORKER_KEEP_S))


def _orphans(database: Database, storage: Storage, settings: Settings) -> None:
    """Files without a row: left by whoever died between writing and recording."""
    for name, age in list(storage.sets("artifacts")):
        _, job_id, fence = name.split("/")
        if age > settings.orphan_age_s and not _counts(database, job_id, fence):
            storage.delete(name)
    for name, age in list(storage.sets("blobs")):
        if age > settings.orphan_age_s and not _is_place(database, name):
            storage.delete(name)
    _old_files(database, settings)


def _counts(database: Database, job_id: str, fence: str) -> bool:
    """Whether the set belongs to its job, or may still come to."""
    with database.read() as connection:
        row = connection.execute(
            select(jobs.c.published_fence, jobs.c.fence, jobs.c.state).where(jobs.c.id == job_id)
        ).one_or_none()
    if row is None:
        return False
    return str(row.published_fence) == fence or (row.state in OPEN and str(row.fence) == fence)


def _is_place(database: Database, name: str) -> bool:
    with database.read() as connection:
        return bool(connection.execute(select(exists().where(blobs.c.place == name))).scalar_one())


def _old_files(database: Database, settings: Settings) -> None:
    """Uploads without a row, and workplaces of attempts that are over."""
    with database.read() as connection:
        known = {row.id for row in connection.execute(select(uploads.c.id))}
        query = select(jobs.c.id, jobs.c.fence).where(jobs.c.state.in_(OPEN))
        working = {f"{row.id}-{row.fence}" for row in connection.execute(query)}
    for path in _older(settings.uploads_dir, settings.orphan_age_s):
        if path.name not in known:
            path.unlink(missing_ok=True)
    for path in _older(settings.scratch_dir, settings.orphan_age_s):
        if path.name not in working:
            shutil.rmtree(path, ignore_errors=True)


def _older(folder: Path, age_s: float) -> list[Path]:
    """Entries of the folder that nobody has touched for so long; others may be removing them meanwhile."""
    if not folder.is_dir():
        return []
    limit = time.time() - age_s
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < limit:
                found.append(path)
    return found
