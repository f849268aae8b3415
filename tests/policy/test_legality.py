"""May a node be narrow: ports by the schema at the model's opset."""

from __future__ import annotations

import pytest

from converter.formats import BF16, FP16, NARROW_FORMATS
from converter.policy.legality import (
    Ports,
    Refusal,
    first_opset_for,
    float_ports,
    has_cast,
    is_structured,
    narrow_ports,
    wide_ports,
)
from converter.policy.lookup import policy_for
from tests.models.build import indexed


def ports(text: str, to: str = "fp16", opset: int = 17, node: int = 0, **more: object) -> Ports | Refusal:
    index = indexed(text, opset, **more)  # type: ignore[arg-type]
    made = index.nodes[node]
    row = policy_for(made.domain, made.op_type, index.version(made.domain))
    return narrow_ports(index, node, row, NARROW_FORMATS[to])


class TestNarrow:
    @pytest.mark.parametrize(
        ("text", "inputs", "outputs"),
        [
            ("g (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, x) }", "narrow narrow", "narrow"),
            ("g (float[2] x, bool[2] c) => (float[2] y) { y = Where(c, x, x) }", "other narrow narrow", "narrow"),
            ("g (float[2] x) => (float[2] y) <float k = {1}> { y = Clip(x, , k) }", "narrow other narrow", "narrow"),
            ("g (float[2, 4] x, float[4] s) => (float[2, 4] y, float[2, 1] m) { y, m = LayerNormalization(x, s) }",
             "narrow narrow", "narrow wide"),
            ("g (float[4] x) => (float[1] y, int64[1] i) <int64[1] k = {1}> { y, i = TopK(x, k) }",
             "narrow other", "narrow other"),
            ("g (float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, 4, 4] y) { y = Resize(x, , s) }",
             "narrow other wide", "narrow"),
            ("g (float16[2] h, float[2] x) => (float[2] y) { y = CastLike(h, x) }", "other narrow", "narrow"),
            ("g (float[2] x) => (int64[1] y) { y = Shape(x) }", "stored", "other"),
        ],
        ids=["MatMul", "Where", "left out", "LayerNormalization", "TopK", "Resize", "CastLike", "Shape"],
    )  # fmt: skip
    def test_ports(self, text: str, inputs: str, outputs: str) -> None:
        found = ports(text)
        assert isinstance(found, Ports), found
        assert (" ".join(found.inputs), " ".join(found.outputs)) == (inputs, outputs)

    def test_batch_normalization_keeps_its_running_statistics(self) -> None:
        text = """
            g (float[1, 2, 3] x, float[2] s) => (float[1, 2, 3] y) { y = BatchNormalization(x, s, s, s, s) }"""
        found = ports(text)
        assert isinstance(found, Ports)
        assert found.inputs[0] == "narrow"
        assert set(found.inputs[3:]) == {"wide"}


class TestRefused:
    def test_a_type_the_schema_gets_later(self) -> None:
        found = ports(
            "g (float[1, 1, 4, 4] x, float[1, 1, 2, 2] w) => (float[1, 1, 3, 3] y) { y = Conv(x, w) }", "bf16"
        )
        assert isinstance(found, Refusal)
        assert (found.rule, found.reason) == (
            "legality", "the schema Conv-11 does not allow BF16 for T; it does from opset 22",
        )  # fmt: skip

    def test_a_type_the_schema_never_gets(self) -> None:
        found = ports("g (float[2] x) => (float[2] y) { y = Shrink(x) }", "bf16")
        assert isinstance(found, Refusal)
        assert found.reason == "the schema Shrink-9 does not allow BF16 for T"

    def test_an_operator_without_a_float_to_narrow(self) -> None:
        found = ports("g (int64[2] x) => (int64[2] y) { y = Add(x, x) }")
        assert isinstance(found, Refusal)
        assert found.reason == "Add has no FP32 port that should become FP16"

    def test_an_operator_nobody_knows(self) -> None:
        found = ports("g (float[2] x) => (float[2] y) { y = mine.Op(x) }", domains={"mine": 1})
        assert isinstance(found, Refusal)
        assert (found.rule, found.reason) == ("unknown", "operator Op of domain 'mine' is not in the policy table")


class TestWide:
    @pytest.mark.parametrize(
        ("node", "inputs", "outputs"),
        [("y = Exp(x)", "wide", "wide"), ("y = Shape(x)", "stored", "other"), ("y = Cast<to = 1>(x)", "stored", "wide"),
         ("y = CastLike(x, x)", "stored wide", "wide"), ("y = Size(x)", "stored", "other"),
         ("y = Reshape(x, i)", "wide other", "wide"), ("y = mine.Op(x)", "wide", "other")],
    )  # fmt: skip
    def test_ports(self, node: str, inputs: str, outputs: str) -> None:
        index = indexed(f"g (float[2] x, int64[1] i) => (y) {{ {node} }}", domains={"mine": 1})
        found = wide_ports(index, 0, FP16)
        assert (" ".join(found.inputs), " ".join(found.outputs)) == (inputs, outputs)

    def test_a_cast_that_does_not_take_the_narrow_type(self) -> None:
        index = indexed("g (float[2] x) => (float[2] y) { y = Cast<to = 1>(x) }", 9)
        assert wide_ports(index, 0, FP16).inputs == ("stored",)
        assert wide_ports(index, 0, BF16).inputs == ("wide",)


class TestOpsets:
    @pytest.mark.parametrize(
        ("node", "opset", "first"),
        [("y = Softplus(x)", 17, 22), ("y = MatMul(x, x)", 11, 13), ("y = Relu(x)", 9, 13), ("y = Shrink(x)", 17, None),
         ("y = mine.Op(x)", 17, None), ("y = com.microsoft.FusedMatMul(x, x)", 11, 13),
         ("y = com.microsoft.FusedMatMul(x, x)", 13, None)],
    )  # fmt: skip
    def test_first_opset_for_bf16(self, node: str, opset: int, first: int | None) -> None:
        domains = {"mine": 1, "com.microsoft": 1}
        index = indexed(f"g (float[2, 2] x) => (float[2, 2] y) {{ {node} }}", opset, domains=domains)
        assert first_opset_for(index, 0, BF16) == first

    @pytest.mark.parametrize(("opset", "fp16", "bf16"), [(7, True, False), (12, True, False), (13, True, True)])
    def test_casts(self, opset: int, fp16: bool, bf16: bool) -> None:
        index = indexed("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset)
        assert (has_cast(index, FP16), has_cast(index, BF16)) == (fp16, bf16)


def test_float_ports_and_structure() -> None:
    index = indexed("""
        g (float[2] x, int64[2] i, bool c) => (float[2] y, int64[2] j) {
          y = If(c) <then_branch = t () => (float[2] u) { u = Neg(x) },
                     else_branch = e () => (float[2] v) { v = Abs(x) }>
          j = Neg(i) }""")
    assert [float_ports(index, n) for n in range(4)] == [True, True, True, False]
    assert [is_structured(index, n) for n in range(4)] == [True, False, False, False]
