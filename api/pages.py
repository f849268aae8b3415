"""Cursor pagination: newest first, and a token that says where the page before ended."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Query
from sqlalchemy import Connection, Row, Select, Table, and_, or_

from api.errors import ApiError

T = TypeVar("T")

PageSize = Annotated[int, Query(ge=1, le=200, description="items on a page")]
PageToken = Annotated[str | None, Query(max_length=500, description="`next_page_token` of the page before")]


def pack(position: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


def unpack(token: str, *kinds: tuple[type, ...]) -> list[Any]:
    """The position a token stands for: values of these kinds that a database takes.

    Raises:
        ApiError: INVALID_REQUEST for a token we did not make.
    """
    try:
        position = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True))
    except (ValueError, RecursionError):
        position = None
    fits = isinstance(position, list) and len(position) == len(kinds)
    if not fits or not all(type(one) in kind and _storable(one) for one, kind in zip(position, kinds, strict=True)):
        pointer = [{"pointer": "/page_token", "code": "UNKNOWN_TOKEN", "message": "not a token of this service"}]
        raise ApiError("INVALID_REQUEST", "the page token is none of ours; start without one", errors=pointer)
    return list(position)


def _storable(value: object) -> bool:
    """Whether a database has a place for the value; JSON knows more numbers and texts than that."""
    match value:
        case int():
            return abs(value) < 2**63
        case float():
            return math.isfinite(value)
        case str():
            return value.encode(errors="ignore").decode() == value and "\0" not in value
    return value is None


def newest_first(
    connection: Connection, query: Select[Any], table: Table, size: int, token: str | None
) -> tuple[list[Row[Any]], str | None]:
    """A page of the query's rows by (created_at, id), and the token of the next one."""
    if token:
        created, name = unpack(token, (int, float), (str,))
        older = or_(table.c.created_at < created, and_(table.c.created_at == created, table.c.id < name))
        query = query.where(older)
    rows = list(connection.execute(query.order_by(table.c.created_at.desc(), table.c.id.desc()).limit(size + 1)))
    more = rows[size - 1] if len(rows) > size else None
    return rows[:size], pack([more.created_at, more.id]) if more is not None else None


def page(items: list[Row[Any]], token: str | None, show: Callable[[Row[Any]], T]) -> dict[str, Any]:
    return {"items": [show(row) for row in items], "next_page_token": token}
