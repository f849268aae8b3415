"""The layers of a report as a small SQLite file, so that a page of 100,000 layers is a query and not a parse."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TEXT_COLUMNS: Final = ("value", "node", "op_type", "format", "status")
NUMBER_COLUMNS: Final = (
    "rel_l2_error",
    "max_abs_error",
    "max_rel_error",
    "max_ulp_error",
    "cosine_similarity",
    "sqnr_db",
    "headroom_bits",
    "expected_rel_l2",
)
LOCAL_COLUMN: Final = "local_rel_l2_error"
SORTABLE: Final = ("position", *TEXT_COLUMNS, *NUMBER_COLUMNS, LOCAL_COLUMN)


def write_layers(layers: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write one row per layer: the columns one sorts by, and the layer itself."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode=OFF")
        columns = [f"{name} TEXT" for name in TEXT_COLUMNS] + [f"{name} REAL" for name in NUMBER_COLUMNS]
        connection.execute(
            f"CREATE TABLE layers (position INTEGER PRIMARY KEY, {', '.join(columns)}, {LOCAL_COLUMN} REAL, body TEXT)"
        )
        marks = ", ".join("?" * (len(columns) + 3))
        connection.executemany(
            f"INSERT INTO layers VALUES ({marks})", (_row(number, layer) for number, layer in enumerate(layers))
        )
        connection.commit()
    finally:
        connection.close()


def _row(number: int, layer: Mapping[str, Any]) -> tuple[Any, ...]:
    local = layer.get("local") or {}
    return (
        number,
        *(layer.get(name) for name in TEXT_COLUMNS),
        *(layer.get(name) for name in NUMBER_COLUMNS),
        local.get("rel_l2_error"),
        json.dumps(layer, ensure_ascii=True, allow_nan=False, separators=(",", ":")),
    )


def read_layers(
    path: Path, sort: str, descending: bool, after: tuple[Any, int] | None, limit: int, match: Mapping[str, str]
) -> list[tuple[Any, int, str]]:
    """A page of (sort value, position, layer as JSON), layers without the value last.

    ``after`` is the last row of the page before; ``match`` keeps layers whose text column holds the given text.
    """
    if sort not in SORTABLE or not set(match) <= set(TEXT_COLUMNS):
        raise ValueError(f"layers have no column {sort!r}")
    way, beyond = ("DESC", "<") if descending else ("ASC", ">")
    where: list[str] = ["1"]
    values: list[Any] = []
    for name, text in match.items():
        where.append(f"instr({name}, ?) > 0")
        values.append(text)
    if after is not None:
        last, position = after
        if last is None:
            where.append(f"({sort} IS NULL AND position > ?)")
            values.append(position)
        else:
            where.append(f"({sort} IS NULL OR {sort} {beyond} ? OR ({sort} = ? AND position > ?))")
            values += [last, last, position]
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        rows = connection.execute(
            f"SELECT {sort}, position, body FROM layers WHERE {' AND '.join(where)} "
            f"ORDER BY {sort} IS NULL, {sort} {way}, position LIMIT ?",
            [*values, limit],
        ).fetchall()
    finally:
        connection.close()
    return [(row[0], row[1], row[2]) for row in rows]
