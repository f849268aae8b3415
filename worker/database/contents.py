"""Blobs and who may see them, uploads, models and batches.

A blob's bytes are stored once; a tenant sees it only as a *holder*, that is after having sent every byte of it.
A blob may go when nobody holds it and no model, batch or open job refers to it; foreign keys make that a fact of
the database, not a hope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, func, insert, not_, select, update

from worker.contract import OPEN, ModelFile
from worker.database.engine import insert_or_ignore, now
from worker.database.submit import new_id
from worker.database.tables import batches, blobs, holders, job_blobs, jobs, model_files, models, uploads


def held_blob(connection: Connection, tenant: str, sha256: str) -> Row[Any] | None:
    """The blob when the tenant holds it; looking counts as use and keeps it alive."""
    touched = connection.execute(
        update(holders).where(holders.c.tenant == tenant, holders.c.sha256 == sha256).values(used_at=now())
    )
    if not touched.rowcount:
        return None
    return connection.execute(select(blobs).where(blobs.c.sha256 == sha256)).one()


def find_blob(connection: Connection, sha256: str) -> Row[Any] | None:
    return connection.execute(select(blobs).where(blobs.c.sha256 == sha256)).one_or_none()


def sees_blob(connection: Connection, tenant: str, sha256: str) -> Row[Any] | None:
    """The blob when the tenant holds it, without touching anything."""
    query = select(blobs).join(holders, holders.c.sha256 == blobs.c.sha256)
    return connection.execute(query.where(holders.c.tenant == tenant, blobs.c.sha256 == sha256)).one_or_none()


def add_blob(connection: Connection, tenant: str, sha256: str, size: int, place: str) -> str:
    """Record the stored file as the blob's content and the tenant as a holder; the place that counts.

    When the blob was there already its old place is returned and the new file is superfluous.
    """
    add = insert_or_ignore(connection.dialect)
    connection.execute(
        add(blobs).values(sha256=sha256, size=size, place=place, created_at=now()).on_conflict_do_nothing()
    )
    connection.execute(
        add(holders)
        .values(tenant=tenant, sha256=sha256, used_at=now())
        .on_conflict_do_update(index_elements=["tenant", "sha256"], set_={"used_at": now()})
    )
    return str(connection.execute(select(blobs.c.place).where(blobs.c.sha256 == sha256)).scalar_one())


def stored_bytes(connection: Connection, tenant: str) -> int:
    """What the tenant holds and has announced to send."""
    held = select(func.coalesce(func.sum(blobs.c.size), 0)).join(holders, holders.c.sha256 == blobs.c.sha256)
    total = connection.execute(held.where(holders.c.tenant == tenant)).scalar_one()
    query = select(func.coalesce(func.sum(uploads.c.size), 0))
    coming = connection.execute(query.where(uploads.c.tenant == tenant, uploads.c.blob.is_(None))).scalar_one()
    return int(total) + int(coming)


def insert_upload(
    connection: Connection, tenant: str, size: int, sha256: str | None, filename: str, keep_s: float
) -> Row[Any]:
    statement = insert(uploads).values(
        id=new_id("upl"), tenant=tenant, size=size, sha256=sha256, filename=filename, created_at=now(),
        expires_at=now() + keep_s,
    )  # fmt: skip
    return connection.execute(statement.returning(*uploads.c, (uploads.c.expires_at - now()).label("left"))).one()


def find_upload(connection: Connection, tenant: str, upload_id: str) -> Row[Any] | None:
    """The tenant's upload; ``expired`` says whether its time is over."""
    query = select(uploads, (uploads.c.expires_at < now()).label("expired"))
    return connection.execute(query.where(uploads.c.id == upload_id, uploads.c.tenant == tenant)).one_or_none()


def insert_model(connection: Connection, tenant: str, entry: str, kind: str, files: Sequence[ModelFile]) -> Row[Any]:
    row = connection.execute(
        insert(models)
        .values(id=new_id("mdl"), tenant=tenant, entry=entry, format=kind, created_at=now(), used_at=now())
        .returning(*models.c)
    ).one()
    for one in files:
        connection.execute(insert(model_files).values(model_id=row.id, path=one.path, sha256=one.sha256, size=one.size))
    return row


def find_model(connection: Connection, tenant: str, model_id: str) -> Row[Any] | None:
    query = select(models).where(models.c.id == model_id, models.c.tenant == tenant)
    return connection.execute(query).one_or_none()


def files_of(connection: Connection, model_id: str) -> tuple[ModelFile, ...]:
    query = select(model_files).where(model_files.c.model_id == model_id).order_by(model_files.c.path)
    return tuple(ModelFile(row.path, row.sha256, row.size) for row in connection.execute(query))


def model_in_use(connection: Connection, model_id: str) -> bool:
    query = select(exists().where(jobs.c.model_id == model_id, jobs.c.state.in_(OPEN)))
    return bool(connection.execute(query).scalar_one())


def insert_batch(
    connection: Connection, tenant: str, filename: str, sha256: str | None, size: int, generator: Any
) -> Row[Any]:
    statement = insert(batches).values(
        id=new_id("inp"), tenant=tenant, filename=filename, sha256=sha256, size=size, generator=generator,
        created_at=now(), used_at=now(),
    )  # fmt: skip
    return connection.execute(statement.returning(*batches.c)).one()


def find_batch(connection: Connection, tenant: str, batch_id: str) -> Row[Any] | None:
    query = select(batches).where(batches.c.id == batch_id, batches.c.tenant == tenant)
    return connection.execute(query).one_or_none()


def touch(connection: Connection, model_id: str, batch_ids: Sequence[str]) -> None:
    """Note that a job uses them, which restarts the time they are kept."""
    connection.execute(update(models).where(models.c.id == model_id).values(used_at=now()))
    connection.execute(update(batches).where(batches.c.id.in_(batch_ids)).values(used_at=now()))


def unreferenced(connection: Connection, keep_s: float, limit: int, only: str | None = None) -> list[Row[Any]]:
    """Blobs (or ``only`` this one) without any reference whose holders have not used them for ``keep_s``."""
    recent = exists().where(holders.c.sha256 == blobs.c.sha256, holders.c.used_at > now() - keep_s)
    used = [exists().where(table.c.sha256 == blobs.c.sha256) for table in (model_files, batches, job_blobs)]
    query = select(blobs).where(and_(not_(recent), *(not_(one) for one in used))).limit(limit)
    query = query if only is None else query.where(blobs.c.sha256 == only)
    return list(connection.execute(query))
