"""Rule 9, the user's word."""

from __future__ import annotations

import pytest

from converter.errors import OptionError
from converter.policy.decide import decide
from converter.policy.rules.overrides import matched_nodes
from converter.types import PolicyOverride
from tests.models.build import indexed
from tests.models.run import narrow_labels, reason_of, rule_of
from tests.policy.rules.asking import context

TEXT = """
    g (float[2, 2] x, int64[2] i) => (float[2, 2] y, int64[2] j) {
      [encoder_mm] h = MatMul(x, x)  [encoder_act] a = Relu(h)  [decoder_mm] d = MatMul(a, x)  [decoder_exp] y = Exp(d)
      [ints] j = Neg(i) }"""


def matched(*overrides: PolicyOverride) -> dict[str, str]:
    index = indexed(TEXT)
    return {index.labels[n]: o.format for n, o in matched_nodes(index, overrides).items()}


class TestMatching:
    @pytest.mark.parametrize(
        ("fields", "expected"),
        [({"node": "encoder*"}, {"encoder_mm", "encoder_act"}), ({"node": "*_mm"}, {"encoder_mm", "decoder_mm"}),
         ({"node": "decoder_mm"}, {"decoder_mm"}), ({"op_type": "MatMul"}, {"encoder_mm", "decoder_mm"}),
         ({"value": "d"}, {"decoder_mm"}), ({"value": "?"}, {"encoder_mm", "encoder_act", "decoder_mm", "decoder_exp"}),
         ({"inputs_from": "Relu"}, {"decoder_mm"}), ({"feeds": "Exp"}, {"decoder_mm"}),
         ({"op_type": "MatMul", "feeds": "Relu"}, {"encoder_mm"})],
    )  # fmt: skip
    def test_every_field_has_to_match(self, fields: dict[str, str], expected: set[str]) -> None:
        assert set(matched(PolicyOverride(**fields))) == expected

    def test_the_last_one_wins(self) -> None:
        found = matched(PolicyOverride("fp32", op_type="MatMul"), PolicyOverride("fp16", node="encoder*"))
        assert found == {"encoder_mm": "fp16", "decoder_mm": "fp32", "encoder_act": "fp16"}

    def test_patterns_are_case_sensitive(self) -> None:
        with pytest.raises(OptionError):
            matched(PolicyOverride(node="Encoder*"))

    def test_nodes_without_floats_are_not_asked(self) -> None:
        with pytest.raises(OptionError, match=r"matches no float node"):
            matched(PolicyOverride(node="ints"))


class TestNothing:
    def refusal(self, override: PolicyOverride) -> str:
        with pytest.raises(OptionError) as refused:
            matched(override)
        return str(refused.value)

    def test_names_that_come_close_are_shown(self) -> None:
        assert self.refusal(PolicyOverride(node="*act?", origin="--keep-fp32 '*act?'")) == (
            "--keep-fp32 '*act?' matches no float node of the model; node names look like 'encoder_act' (4 in all)"
        )

    def test_otherwise_the_first_names(self) -> None:
        assert self.refusal(PolicyOverride(op_type="Conv", origin="rule 3")) == (
            "rule 3 matches no float node of the model; "
            "node names look like 'encoder_mm', 'encoder_act', 'decoder_mm', 'decoder_exp' (4 in all)"
        )

    def test_without_an_origin_the_pattern_is_named(self) -> None:
        assert self.refusal(PolicyOverride(value="zz")).startswith("override 'zz' matches no float node")

    def test_an_empty_override_matches_nothing(self) -> None:
        assert self.refusal(PolicyOverride()).startswith("override '' matches no float node")


class TestDecisions:
    def test_keeping_fp32(self) -> None:
        plan = decide(context(TEXT, overrides=(PolicyOverride(node="encoder*", origin="--keep-fp32 'encoder*'"),)))
        assert narrow_labels(plan) == ["decoder_mm"]
        assert rule_of(plan, "encoder_mm") == "override"
        assert reason_of(plan, "encoder_mm") == "kept FP32 by --keep-fp32 'encoder*'"

    def test_narrowing_what_the_table_keeps(self) -> None:
        plan = decide(context(TEXT, overrides=(PolicyOverride("fp16", node="decoder_exp", origin="rule 0"),)))
        assert "decoder_exp" in narrow_labels(plan)
        assert reason_of(plan, "decoder_exp") == "narrowed by rule 0"

    def test_narrowing_what_a_rule_keeps(self) -> None:
        text = "g (float[1] x) => (float[1] y) <float[1] k = {70091}> { [scale] y = Div(x, k) }"
        assert narrow_labels(decide(context(text))) == []
        plan = decide(context(text, overrides=(PolicyOverride("fp16", node="scale"),)))
        assert narrow_labels(plan) == ["scale"]

    def test_narrowing_what_the_schema_forbids_leaves_it_fp32(self) -> None:
        text = "g (float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y) { [pool] y = LpNormalization(x)  }"
        plan = decide(context(text, to="bf16", overrides=(PolicyOverride("bf16", node="pool", origin="rule 2"),)))
        assert rule_of(plan, "pool") == "legality"
        assert reason_of(plan, "pool") == (
            "the schema LpNormalization-1 does not allow BF16 for T; it does from opset 22"
        )

    def test_a_wish_for_many_of_which_some_may_is_heard(self) -> None:
        plan = decide(context(TEXT, overrides=(PolicyOverride("fp16", node="*"),)))
        assert set(narrow_labels(plan)) == {"encoder_mm", "encoder_act", "decoder_mm", "decoder_exp"}
