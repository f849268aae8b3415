from __future__ import annotations

import pytest

from converter.policy.lookup import DEFAULT_SOURCE, policy_for
from converter.policy.table import DEFAULT_WIDE, TABLE
from converter.types import OpClass


@pytest.mark.parametrize(
    ("op_type", "opset", "since"),
    [
        ("Clip", 7, 7),
        ("Clip", 10, 7),
        ("Clip", 11, 11),
        ("Clip", 28, 11),
        ("BatchNormalization", 13, 7),
        ("BatchNormalization", 14, 14),
        ("BatchNormalization", 15, 15),
        ("GroupNormalization", 20, 18),
        ("GroupNormalization", 21, 21),
    ],
)
def test_the_bracket_decides(op_type: str, opset: int, since: int) -> None:
    row = policy_for("", op_type, opset)
    assert row is not None
    assert (row.op_type, row.since) == (op_type, since)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_both_names_of_the_standard_domain(domain: str) -> None:
    row = policy_for(domain, "MatMul", 13)
    assert row is not None
    assert row.op_class is OpClass.NARROW


def test_equal_names_of_two_domains_are_two_operators() -> None:
    standard, contributed = policy_for("", "Attention", 23), policy_for("com.microsoft", "Attention", 1)
    assert standard is not None
    assert contributed is not None
    assert standard.saturate == ("attn_mask",)
    assert contributed.saturate == ("attention_bias",)


@pytest.mark.parametrize(
    ("domain", "op_type", "opset"),
    [("", "Gelu", 19), ("", "Upsample", 10), ("", "Nonsense", 20), ("my.ops", "MatMul", 1), ("my.ops", "RoiAlign", 1)],
)
def test_unknown_operators_have_no_policy(domain: str, op_type: str, opset: int) -> None:
    assert policy_for(domain, op_type, opset) is None


@pytest.mark.parametrize("op_type", DEFAULT_WIDE)
def test_wide_by_default(op_type: str) -> None:
    row = policy_for("", op_type, 22)
    assert row is not None
    assert (row.op_class, row.reason, row.source) == (OpClass.WIDE, DEFAULT_WIDE[op_type], DEFAULT_SOURCE)


def test_every_row_can_be_found() -> None:
    assert all(policy_for(row.domain, row.op_type, row.since) is row for row in TABLE)
    assert all(policy_for(row.domain, row.op_type, row.until) is row for row in TABLE if row.until is not None)
