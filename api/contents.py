"""What happens when the last byte of a file has come: digest, store, record."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, exc

from api.errors import ApiError
from api.intake import file_digest, storage_errors
from api.service import Caller, Service
from worker.database import contents
from worker.database.engine import alone

_TRIES: Final = 3


def refuse_if_full(service: Service, connection: Connection, tenant: str, size: int) -> None:
    """Before any byte is taken: is the file allowed, within the quota, and is there room on the disk?"""
    settings = service.settings
    if size > settings.max_upload_bytes:
        raise ApiError(
            "TOO_LARGE", f"a file may have {settings.max_upload_bytes} bytes, this one has {size}",
            limit=settings.max_upload_bytes, actual=size,
        )  # fmt: skip
    _refuse_beyond_quota(settings.quota_bytes, connection, tenant, size)
    free = shutil.disk_usage(settings.uploads_dir).free - settings.disk_reserve_bytes
    if size > free:
        raise ApiError("STORAGE_FULL", f"{size} bytes are announced, {max(0, free)} are free")


def _refuse_beyond_quota(quota: int, connection: Connection, tenant: str, size: int) -> None:
    if not quota:
        return
    alone(connection, f"bytes of {tenant}")
    stored = contents.stored_bytes(connection, tenant)
    if stored + size > quota:
        raise ApiError(
            "QUOTA_BYTES", f"{stored} bytes are stored or announced, {size} more are beyond the quota", limit=quota,
            actual=stored + size,
        )  # fmt: skip


def take_in(
    service: Service, caller: Caller, path: Path, size: int, digest: str | None, *, announced: bool = False
) -> str:
    """Make the file at ``path`` a blob of the tenant's; returns its SHA-256.  The file itself stays.

    Raises:
        ApiError: QUOTA_BYTES, unless the bytes are ``announced`` and so counted already; STORAGE_FULL.
    """
    sha256 = digest or file_digest(path)
    with service.database.read() as connection:
        known = contents.find_blob(connection, sha256)
    place = "" if known is not None else _store(service, path, sha256)
    for left in reversed(range(_TRIES)):
        try:
            return _record(service, caller, sha256, size, place, announced=announced)
        except ApiError:
            if place:
                service.storage.delete(place)
            raise
        except exc.IntegrityError:  # retention removed the blob between two statements
            if not left:
                raise
            place = _store(service, path, sha256)
    raise AssertionError("unreachable")


def _store(service: Service, path: Path, sha256: str) -> str:
    place = f"blobs/{sha256[:2]}/{sha256}-{secrets.token_hex(4)}"
    with storage_errors():
        service.storage.put(path, place)
    return place


def _record(service: Service, caller: Caller, sha256: str, size: int, place: str, *, announced: bool) -> str:
    with service.database.write() as connection:
        if not announced and contents.sees_blob(connection, caller.tenant, sha256) is None:
            _refuse_beyond_quota(service.settings.quota_bytes, connection, caller.tenant, size)
        if not place and contents.find_blob(connection, sha256) is None:
            raise exc.IntegrityError("", {}, Exception("the blob is gone"))
        counted = contents.add_blob(connection, caller.tenant, sha256, size, place)
    if place and counted != place:
        service.storage.delete(place)
    return sha256
