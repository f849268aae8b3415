"""The table against the schemas: complete, well-formed, legal.  The document and the lookup have their own files."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from converter.formats import FP16
from converter.policy.table import DEFAULT_WIDE, TABLE
from converter.types import Depth, HiddenRange, OpClass, OpPolicy

from .schemas import (
    FIRST_OPSET,
    NEWEST_OPSET,
    all_schemas,
    in_force,
    legal_since,
    legality_text,
    live_float_operators,
    narrow_variables,
    row_schemas,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "policy_legality.txt"
SENTENCE = re.compile(r"[A-Z][^\n]*\.\Z")
SCHEMA_SOURCE = re.compile(r"ONNX schema (\w+)-(\d+)")


def row_id(row: OpPolicy) -> str:
    return f"{row.domain}::{row.op_type}-{row.since}" if row.domain else f"{row.op_type}-{row.since}"


def not_in_table(operators: set[str], rows: tuple[OpPolicy, ...]) -> str:
    """What a newcomer's failure says: the names, and what to do."""
    known = {row.op_type for row in rows if row.domain == ""} | set(DEFAULT_WIDE)
    missing = sorted(operators - known)
    return f"no policy for {', '.join(missing)}: add a row or an entry of DEFAULT_WIDE" if missing else ""


each_row = pytest.mark.parametrize("row", TABLE, ids=row_id)
each_narrowable_row = pytest.mark.parametrize(
    "row", [row for row in TABLE if row.op_class is not OpClass.WIDE], ids=row_id
)


class TestComplete:
    def test_every_live_float_operator_has_a_policy(self) -> None:
        assert not_in_table(set(live_float_operators()), TABLE) == ""

    def test_a_newcomer_is_named(self) -> None:
        newcomers = set(live_float_operators()) | {"NewcomerNorm"}
        expected = "no policy for NewcomerNorm: add a row or an entry of DEFAULT_WIDE"
        assert not_in_table(newcomers, TABLE) == expected

    def test_counts_are_pinned(self) -> None:
        standard = [row for row in TABLE if row.domain == ""]
        assert len(live_float_operators()) == 187
        assert len(DEFAULT_WIDE) == 34
        assert Counter(row.op_class.value for row in standard) == {"narrow": 12, "follow": 46, "exact": 59, "wide": 47}
        contributed = Counter(row.op_class.value for row in TABLE if row.domain)
        assert contributed == {"narrow": 24, "follow": 10, "exact": 7, "wide": 6}

    def test_wide_by_default_is_not_said_twice(self) -> None:
        assert not set(DEFAULT_WIDE) & {row.op_type for row in TABLE if row.domain == ""}

    def test_only_live_float_operators_are_wide_by_default(self) -> None:
        assert set(DEFAULT_WIDE) <= set(live_float_operators())

    @pytest.mark.parametrize("op_type", DEFAULT_WIDE)
    def test_wide_by_default_has_a_reason(self, op_type: str) -> None:
        assert SENTENCE.match(DEFAULT_WIDE[op_type])
        assert len(DEFAULT_WIDE[op_type].split()) >= 5

    def test_brackets_follow_each_other_over_the_life_of_an_operator(self) -> None:
        for op_type, live in live_float_operators().items():
            rows = [row for row in TABLE if row.op_type == op_type and row.domain == ""]
            if not rows:
                continue
            # GroupNormalization-18 was deprecated in hindsight, and models that use it exist: it has a bracket too
            known = in_force(all_schemas()["", op_type], FIRST_OPSET, NEWEST_OPSET)
            retired = [s.since_version for s in known if s.deprecated and s.since_version > live[-1].since_version]
            assert rows[0].since == max(FIRST_OPSET, known[0].since_version), op_type
            assert rows[-1].until == (min(retired) - 1 if retired else None), op_type
            for earlier, later in pairwise(rows):
                assert earlier.until == later.since - 1, op_type


class TestWellFormed:
    @each_row
    def test_the_operator_exists_in_the_bracket(self, row: OpPolicy) -> None:
        schemas = row_schemas(row)
        assert schemas
        assert schemas[0].since_version <= row.since
        assert row.until is None or row.since <= row.until

    @each_row
    def test_sensitive_inputs_exist_under_their_names(self, row: OpPolicy) -> None:
        for schema in row_schemas(row):
            assert {*row.keep_wide, *row.saturate, *row.nonzero} <= set(schema.input_names), schema.since_version

    @each_row
    def test_wide_inputs_have_a_type_of_their_own(self, row: OpPolicy) -> None:
        for schema in row_schemas(row):
            narrow = narrow_variables(row, schema)
            kept = {port.type_var for port in schema.inputs if port.name in row.keep_wide}
            assert not kept & set(narrow), schema.since_version

    @each_row
    def test_narrow_variables_exist(self, row: OpPolicy) -> None:
        for schema in row_schemas(row):
            assert set(row.narrow_vars) <= set(schema.type_vars), schema.since_version

    @each_row
    def test_the_reason_is_a_sentence_and_the_source_is_given(self, row: OpPolicy) -> None:
        assert SENTENCE.match(row.reason)
        assert len(row.reason.split()) >= 5
        assert row.source
        assert row.source == row.source.strip()

    @each_row
    def test_a_schema_named_as_source_is_one_the_row_speaks_for(self, row: OpPolicy) -> None:
        for op_type, version in SCHEMA_SOURCE.findall(row.source):
            assert op_type == row.op_type
            assert int(version) in {schema.since_version for schema in row_schemas(row)}

    @each_row
    def test_accumulate_is_a_known_word(self, row: OpPolicy) -> None:
        assert row.accumulate in {"wide", "narrow"}

    @each_row
    def test_a_hidden_sum_says_how_long_it_is(self, row: OpPolicy) -> None:
        sums = {HiddenRange.SUM, HiddenRange.SUM_SQUARE, HiddenRange.SUM_EXP}
        assert row.hidden_range not in sums or row.depth is not Depth.ONE

    @each_row
    def test_exact_rows_hide_nothing(self, row: OpPolicy) -> None:
        if row.op_class is OpClass.EXACT:
            assert (row.hidden_range, row.depth, row.accumulate) == (HiddenRange.NONE, Depth.ONE, "wide")

    def test_brackets_do_not_overlap(self) -> None:
        claimed: dict[tuple[str, str], set[int]] = {}
        for row in TABLE:
            last = 99 if row.until is None else row.until
            bracket = set(range(row.since, last + 1))
            taken = claimed.setdefault((row.domain, row.op_type), set())
            assert not bracket & taken, row_id(row)
            taken |= bracket


class TestLegal:
    @each_narrowable_row
    def test_the_schema_allows_fp16_somewhere_in_the_bracket(self, row: OpPolicy) -> None:
        assert legal_since(row, FP16) is not None

    @each_narrowable_row
    def test_something_becomes_narrow_at_every_version(self, row: OpPolicy) -> None:
        assert all(narrow_variables(row, schema) for schema in row_schemas(row))

    def test_first_legal_opsets_are_pinned(self) -> None:
        """Regenerate with ``python -m tests.policy.schemas`` and review the difference."""
        assert legality_text() == GOLDEN.read_text()


DESIGN = {
    OpClass.NARROW: ("MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "LSTM", "GRU", "RNN"),
    OpClass.FOLLOW: ("Add", "Mul", "Sigmoid", "Gelu", "Clip", "LayerNormalization", "ReduceMean"),
    OpClass.WIDE: (
        *("Softmax", "LogSoftmax", "Exp", "Log", "Pow", "Reciprocal", "ReduceL2", "CumSum", "Softplus"),
        *("InstanceNormalization", "LpNormalization", "Range", "TopK", "ArgMax", "QuantizeLinear"),
    ),
    OpClass.EXACT: ("Reshape", "Transpose", "Concat", "Slice", "Gather", "Relu", "Max", "MaxPool", "Where", "If"),
}


@pytest.mark.parametrize(("op_class", "op_type"), [(c, op) for c, names in DESIGN.items() for op in names])
def test_classes_that_the_design_names(op_class: OpClass, op_type: str) -> None:
    assert {row.op_class for row in TABLE if row.op_type == op_type and row.domain == ""} == {op_class}
