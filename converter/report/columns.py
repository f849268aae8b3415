"""A table as a list of columns: what stands in the head, and how a cell follows from an entry of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from converter.report import wording
from converter.report.records import Object


@dataclass(frozen=True, slots=True)
class Column:
    """One column.  Numbers align right, wide text may wrap, ``tip`` explains the head where there is room for it."""

    title: str
    cell: Callable[[Object], str]
    number: bool = False
    wide: bool = False
    tip: str = ""


def num(title: str, key: str, show: Callable[[Any], str], tip: str = "") -> Column:
    """A figure under its key, in the wording of ``show``."""
    return Column(title, lambda entry: wording.of(entry, key, show), number=True, tip=tip)


def alone(layer: Object) -> float | None:
    """The local error: the node alone, on FP32 inputs."""
    error: float | None = (layer["local"] or {}).get("rel_l2_error")
    return error


def sqnr(entry: Object) -> str:
    return "equal" if entry["equal"] else wording.fixed(entry["sqnr_db"], 1)


def nonfinite(entry: Object) -> str:
    """NaN and infinities in FP32, in the mixed run, and misplaced; one 0 when there are none at all."""
    if entry["misplaced_nonfinite"] is None:
        return wording.ABSENT
    found = [entry[key] or 0 for key in ("reference_nonfinite", "value_nonfinite", "misplaced_nonfinite")]
    return " / ".join(f"{amount:,}" for amount in found) if any(found) else "0"
