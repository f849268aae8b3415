"""A POST that may be sent twice and acts once.

The stored answer and the act are one transaction: a killed process leaves both or none, and of a hundred equal
requests at the same moment one acts and the others read its answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Header, Response
from fastapi.responses import JSONResponse
from sqlalchemy import Connection, select, update

from api.errors import ApiError
from api.service import Caller, Service
from worker.database.engine import insert_or_ignore, now
from worker.database.tables import answers

KEY_SHAPE: Final = re.compile(r"^[\x21-\x7e]{1,255}$")

IdempotencyKey = Annotated[
    str | None, Header(description="makes this POST safe to repeat for 24 hours", examples=["7d6f0b0a"])
]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a POST says: status, body, and where the new thing is."""

    status: int
    body: Mapping[str, Any]
    location: str = ""
    replayed: bool = field(default=False, compare=False)

    def response(self, **headers: str) -> Response:
        extra = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.location:
            extra["Location"] = self.location
        if self.replayed:
            extra["Idempotency-Replayed"] = "true"
        return JSONResponse(dict(self.body), self.status, extra)


def once(
    service: Service, caller: Caller, key: str | None, request: Any, act: Callable[[Connection], Answer]
) -> Answer:
    """Run ``act`` in a writing transaction, or give the answer that this key got before.

    ``request`` is everything that tells two requests apart.

    Raises:
        ApiError: IDEMPOTENCY_REUSED when the key came with another request; whatever ``act`` raises is not stored.
    """
    if key is None:
        return service.write_now(act)
    if not KEY_SHAPE.match(key):
        raise ApiError("MALFORMED", "an Idempotency-Key is 1 to 255 visible ASCII characters")
    digest = hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).hexdigest()
    return service.write_now(lambda connection: _once(connection, caller.tenant, key, digest, act))


def _once(connection: Connection, tenant: str, key: str, digest: str, act: Callable[[Connection], Answer]) -> Answer:
    mine = (answers.c.tenant == tenant, answers.c.idempotency_key == key)
    add = insert_or_ignore(connection.dialect)(answers).values(
        tenant=tenant, idempotency_key=key, request_sha256=digest, status=0, location="", body={}, created_at=now()
    )
    if connection.execute(add.on_conflict_do_nothing()).rowcount == 0:
        row = connection.execute(select(answers).where(*mine)).one()
        if row.request_sha256 != digest:
            raise ApiError("IDEMPOTENCY_REUSED", "this Idempotency-Key came with a different request before")
        return Answer(row.status, row.body, row.location, replayed=True)
    answer = act(connection)
    connection.execute(
        update(answers).where(*mine).values(status=answer.status, location=answer.location, body=dict(answer.body))
    )
    return answer
