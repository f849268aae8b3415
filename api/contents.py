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

_TRIES: Final = 3


def refuse_if_full(service: Service, connection: Connection, tenant: str, size: int) -> None:
    """Before any byte is taken: is the file allowed, within the quota, and is there room on the disk?"""
    settings = service.settings
    if size > settings.max_upload_bytes:
        raise ApiError(
            "TOO_LARGE", f"a file may have {settings.max_upload_bytes} bytes, this one has {size}",
            limit=settings.max_upload_bytes, actual=size,
        )  # fmt: skip
    if settings.quota_bytes:
        stored = contents.stored_bytes(connection, tenant)
        if stored + size > settings.quota_bytes:
            raise ApiError(
                "QUOTA_BYTES", f"{stored} bytes are stored or announced, {size} more are beyond the quota",
                limit=settings.quota_bytes, actual=stored + size,
            )  # fmt: skip
    free = shutil.disk_usage(settings.uploads_dir).free - settings.disk_reserve_bytes
    if size > free:
        raise ApiError("STORAGE_FULL", f"{size} bytes are announced, {max(0, free)} are free")


def take_in(service: Service, caller: Caller, path: Path, size: int, digest: str | None) -> str:
    """Make the file at ``path`` a blob of the tenant's; returns its SHA-256.  The file itself stays."""
    sha256 = digest or file_digest(path)
    with service.database.read() as connection:
        known = contents.find_blob(connection, sha256)
    place = "" if known is not None else _store(service, path, sha256)
    for left in reversed(range(_TRIES)):
        try:
            return _record(service, caller, sha256, size, place)
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


def _record(service: Service, caller: Caller, sha256: str, size: int, place: str) -> str:
    with service.database.write() as connection:
        if not place and contents.find_blob(connection, sha256) is None:
            raise exc.IntegrityError("", {}, Exception("the blob is gone"))
        counted = contents.add_blob(connection, caller.tenant, sha256, size, place)
    if place and counted != place:
        service.storage.delete(place)
    return sha256
