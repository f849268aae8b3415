"""Numbers for nodes, values and scopes, and the edges between them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from converter.graph import constant_tensor, element_name, element_type, holds_floats, parse_type, type_string
from tests.models.build import indexed, node, value

BRANCHES = """
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
      [first] h = Mul(x, w)
      [choose] y = If(c) <then_branch = t () => (float[2] u) <float[2] k = {3, 4}> { [inner] u = Add(h, k) },
                          else_branch = e () => (float[2] u) { [other] u = Neg(h) }> }"""


class TestIndex:
    def test_scopes(self) -> None:
        index = indexed(BRANCHES)
        assert [(s.parent, s.owner, s.attribute, s.path) for s in index.scopes] == [
            (None, None, "", ""), (0, 1, "then_branch", "choose.then_branch/"), (0, 1, "else_branch",
             "choose.else_branch/"),
        ]  # fmt: skip
        assert list(index.enclosing(2)) == [2, 0]
        assert index.bodies == {1: {"then_branch": 1, "else_branch": 2}}

    def test_nodes_in_the_order_in_which_they_stand(self) -> None:
        index = indexed(BRANCHES)
        assert index.labels == ["first", "choose", "inner", "other"]
        assert index.node_scope == [0, 0, 1, 2]
        assert list(index.nodes_of(0)) == [0, 1]

    def test_edges(self) -> None:
        index = indexed(BRANCHES)
        h = value(index, "h")
        assert index.producer[h] == 0
        assert index.readers[h] == [(2, 0), (3, 0)]
        assert index.leaves[value(index, "y")] == [(0, 0)]
        assert index.inputs[2] == (h, value(index, "k"))
        assert index.id_of(None) == -1

    def test_equal_names_of_two_scopes_are_two_values(self) -> None:
        index = indexed(BRANCHES)
        assert [index.value_scope[v] for v in range(len(index.values)) if index.name_of(v) == "u"] == [1, 2]

    def test_constants_are_initializers_and_constant_nodes_but_no_inputs(self) -> None:
        index = indexed("""
            g (float[2] x, float[2] o = {1, 2}) => (float[2] y) <float[2] w = {1, 2}> {
              k = Constant<value_float = 2.0>()  a = Mul(x, w)  b = Mul(a, k)  y = Mul(b, o) }""")
        assert {index.name_of(v) for v in index.constants} == {"w", "k"}
        assert {index.name_of(v) for v in index.graph_inputs} == {"x", "o"}

    def test_left_out_inputs_and_outputs(self) -> None:
        index = indexed("g (float[2] x, float[2] m) => (float[2] y) { y = Clip(x, , m) }")
        assert index.inputs[0] == (0, -1, 1)
        assert not index.is_wide(-1)
        assert not index.is_float(-1)

    def test_labels_are_unique(self) -> None:
        index = indexed("g (float[2] x) => (float[2] y) { a = Neg(x)  [n] b = Neg(a)  [n] c = Neg(b)  y = Neg(c) }")
        assert index.labels == ["Neg#0", "n", "n#2", "Neg#3"]

    def test_a_label_that_is_taken_already(self) -> None:
        index = indexed("g (float[2] x) => (float[2] y) { a = Neg(x)  y = Neg(a) }")
        index = indexed("g (float[2] x) => (float[2] y) { a = Neg(x)  y = Neg(a) }")
        assert len(set(index.labels)) == 2

    def test_versions(self) -> None:
        index = indexed("g (float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }", domains={"com.microsoft": 1})
        assert (index.version(""), index.version("ai.onnx"), index.version("com.microsoft"), index.version("none")) == (
            17, 17, 1, 1,
        )  # fmt: skip
        schema = index.schema(0)
        assert schema is not None
        assert schema.domain == "com.microsoft"

    def test_finding_by_output_name(self) -> None:
        assert node(indexed(BRANCHES), "h") == 0


class TestConstants:
    @pytest.mark.parametrize(
        ("attribute", "expected"),
        [("value_float = 1.5", np.array(1.5, np.float32)), ("value_floats = [1.0, 2.0]", np.array([1, 2], np.float32)),
         ("value_int = 3", np.array(3)), ("value_ints = [3, 4]", np.array([3, 4])),
         ("value = float[2] {5, 6}", np.array([5, 6], np.float32))],
    )  # fmt: skip
    def test_every_way_to_write_one(
        self, attribute: str, expected: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    ) -> None:
        index = indexed(f"g () => (y) {{ y = Constant<{attribute}>() }}")
        tensor = constant_tensor(index.nodes[0])
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), expected)
        assert tensor.numpy().dtype == expected.dtype

    def test_strings_are_none(self) -> None:
        index = indexed('g () => (y) { y = Constant<value_string = "a">() }')
        assert constant_tensor(index.nodes[0]) is None

    def test_other_nodes_are_none(self) -> None:
        assert constant_tensor(indexed("g (float[2] x) => (float[2] y) { y = Neg(x) }").nodes[0]) is None
        own = indexed("g (float[2] x) => (y) { y = mine.Constant<value_float = 1.0>(x) }", domains={"mine": 1})
        assert constant_tensor(own.nodes[0]) is None


class TestTypes:
    @pytest.mark.parametrize(
        "text",
        ["tensor(float)", "tensor(double)", "tensor(bfloat16)", "tensor(int4)", "tensor(string)",
         "seq(tensor(float16))",
         "optional(tensor(int64))", "optional(seq(tensor(bool)))", "sparse_tensor(float)", "tensor(float8e4m3fn)"],
    )  # fmt: skip
    def test_there_and_back(self, text: str) -> None:
        assert type_string(parse_type(text)) == text

    def test_unknown(self) -> None:
        assert type_string(None) is None
        assert type_string(ir.TensorType(ir.DataType.UNDEFINED)) is None
        assert type_string(ir.SequenceType(ir.TensorType(ir.DataType.UNDEFINED))) is None
        assert type_string(ir.OptionalType(ir.TensorType(ir.DataType.UNDEFINED))) is None

    @pytest.mark.parametrize(
        ("text", "dtype"),
        [("tensor(float)", ir.DataType.FLOAT), ("seq(tensor(float16))", ir.DataType.FLOAT16), (None, None),
         ("optional(seq(tensor(int8)))", ir.DataType.INT8)],
    )  # fmt: skip
    def test_element_type(self, text: str | None, dtype: ir.DataType | None) -> None:
        assert element_type(text) == dtype

    def test_element_name(self) -> None:
        assert [element_name(d) for d in (ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.INT64)] == [
            "float", "bfloat16", "int64",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("text", "expected"),
        [("tensor(float)", True), ("tensor(double)", True), ("seq(tensor(bfloat16))", True), ("tensor(int64)", False),
         ("optional(tensor(float16))", True), ("tensor(string)", False), (None, False)],
    )  # fmt: skip
    def test_holds_floats(self, text: str | None, expected: bool) -> None:
        assert holds_floats(text) is expected
