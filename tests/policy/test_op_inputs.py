"""Every row that may be narrow has inputs to be tested with, or a reason why not."""

from __future__ import annotations

from converter.policy.table import TABLE
from converter.types import OpClass

from .op_inputs import LEFT_OUT, cases


def test_every_row_has_a_case_or_a_reason() -> None:
    built = {id(case.row) for case in cases()}
    missing = [
        f"{row.domain}::{row.op_type}-{row.since}"
        for row in TABLE
        if row.op_class is not OpClass.WIDE and id(row) not in built and (row.domain, row.op_type) not in LEFT_OUT
    ]
    assert missing == []


def test_no_reason_is_stale() -> None:
    rows = {(row.domain, row.op_type) for row in TABLE if row.op_class is not OpClass.WIDE}
    built = {(case.row.domain, case.row.op_type) for case in cases()}
    assert set(LEFT_OUT) <= rows
    assert not set(LEFT_OUT) & built


def test_rows_without_a_case_are_pinned() -> None:
    assert len(LEFT_OUT) == 35


def test_cases_are_small_and_named() -> None:
    assert all(case.name and case.elements > 0 for case in cases() if case.feeds)
