"""Types from schemas: every operator whose types no schema binds, bodies, stale and missing declarations."""

from __future__ import annotations

import onnx
import pytest

from converter.errors import ModelError
from converter.graph import type_string
from converter.source.type_propagation import element_of, tensor_of
from tests.models.build import indexed, loaded, model


def types(text: str, opset: int = 17, **more: object) -> dict[str, str | None]:
    """The types of all values of a model by name, after all declarations but inputs' were removed."""
    proto = model(text, opset, **more)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.ClearField("type")
    index = loaded(proto).index
    return {index.name_of(v): index.types[v] for v in range(len(index.values))}


class TestSchemas:
    def test_type_variables_bind_outputs(self) -> None:
        found = types("g (float16[2] a, float[2] b, int64[2] i) => (x, y, z) { x = Neg(a)  y = Neg(b)  z = Neg(i) }")
        assert [found[n] for n in "xyz"] == ["tensor(float16)", "tensor(float)", "tensor(int64)"]

    def test_fixed_types(self) -> None:
        found = types("g (float[2] a) => (s, m) { s = Shape(a)  m = IsNaN(a) }")
        assert (found["s"], found["m"]) == ("tensor(int64)", "tensor(bool)")

    def test_several_outputs_of_several_types(self) -> None:
        found = types("g (float16[2] a, int64[1] k) => (v, i) { v, i = TopK(a, k) }")
        assert (found["v"], found["i"]) == ("tensor(float16)", "tensor(int64)")

    def test_a_left_out_output_has_no_type(self) -> None:
        found = types("g (float[2] a, int64[1] k) => (i) { , i = TopK(a, k) }")
        assert found["i"] == "tensor(int64)"

    def test_variadic_inputs(self) -> None:
        assert types("g (bfloat16[2] a, bfloat16[2] b) => (y) { y = Concat<axis = 0>(a, b) }")["y"] == (
            "tensor(bfloat16)"
        )

    def test_contributed_operators(self) -> None:
        found = types("g (float16[2] a) => (y) { y = com.microsoft.Gelu(a) }", domains={"com.microsoft": 1})
        assert found["y"] == "tensor(float16)"

    def test_unknown_operators_have_unknown_results(self) -> None:
        found = types("g (float[2] a) => (y) { h = mine.Op(a)  y = Relu(h) }", domains={"mine": 1})
        assert (found["h"], found["y"]) == (None, None)

    def test_declarations_count_where_no_schema_speaks(self) -> None:
        proto = model("g (float[2] a) => (float[2] y) { h = mine.Op(a)  y = Relu(h) }", domains={"mine": 1})
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2]))
        index = loaded(proto).index
        assert [index.types[v] for v in range(3)] == ["tensor(float)"] * 3

    def test_an_operator_nobody_knows_has_unknown_results(self) -> None:
        assert types("g (float[2] a) => (y) { y = Gleu(a) }", 17)["y"] is None

    def test_the_other_name_of_the_standard_domain(self) -> None:
        proto = model("g (float[2] a) => (float[2] y) { y = Relu(a) }")
        proto.opset_import[0].domain = "ai.onnx"
        proto.graph.node[0].domain = "ai.onnx"
        index = loaded(proto).index
        assert (index.opset, index.types) == (17, ["tensor(float)", "tensor(float)"])


SPECIAL = [
    ("y = Cast<to = 10>(x)", "tensor(float16)", 17),
    ("y = Cast<to = 16>(x)", "tensor(bfloat16)", 17),
    ("y = Constant<value = float16[1] {1}>()", "tensor(float16)", 17),
    ("y = Constant<value_float = 1.0>()", "tensor(float)", 17),
    ("y = Constant<value_floats = [1.0]>()", "tensor(float)", 17),
    ("y = Constant<value_int = 1>()", "tensor(int64)", 17),
    ("y = Constant<value_ints = [1]>()", "tensor(int64)", 17),
    ('y = Constant<value_string = "a">()', "tensor(string)", 17),
    ('y = Constant<value_strings = ["a"]>()', "tensor(string)", 17),
    ("y = ConstantOfShape(i)", "tensor(float)", 17),
    ("y = ConstantOfShape<value = int32[1] {1}>(i)", "tensor(int32)", 17),
    ("y = RandomNormal<shape = [2]>()", "tensor(float)", 17),
    ("y = RandomUniform<shape = [2], dtype = 10>()", "tensor(float16)", 17),
    ("y = Multinomial(x2)", "tensor(int32)", 17),
    ("y = Multinomial<dtype = 7>(x2)", "tensor(int64)", 17),
    ("y = HannWindow(n)", "tensor(float)", 17),
    ("y = HammingWindow<output_datatype = 11>(n)", "tensor(double)", 17),
    ("y = BlackmanWindow(n)", "tensor(float)", 17),
    ("y = MelWeightMatrix(n, n, n, f, f)", "tensor(float)", 17),
    ("y = EyeLike(x2)", "tensor(float)", 17),
    ("y = EyeLike<dtype = 7>(x2)", "tensor(int64)", 17),
    ("y = RandomNormalLike(h)", "tensor(float16)", 17),
    ("y = RandomUniformLike<dtype = 1>(h)", "tensor(float)", 17),
    ("y = Bernoulli(x)", "tensor(float)", 17),
    ("y = SequenceEmpty()", "seq(tensor(float))", 17),
    ("y = SequenceEmpty<dtype = 7>()", "seq(tensor(int64))", 17),
    ("y = SequenceConstruct(h, h)", "seq(tensor(float16))", 17),
    ("y = SplitToSequence(x)", "seq(tensor(float))", 17),
    ("s = SequenceConstruct(h)  y = SequenceAt(s, n)", "tensor(float16)", 17),
    ("s = SequenceConstruct(h)  y = ConcatFromSequence<axis = 0>(s)", "tensor(float16)", 17),
    ("s = SequenceConstruct(h)  y = SequenceInsert(s, h)", "seq(tensor(float16))", 17),
    ("s = SequenceConstruct(h)  y = SequenceErase(s)", "seq(tensor(float16))", 17),
    ("s = SequenceConstruct(h)  y = SequenceLength(s)", "tensor(int64)", 17),
    ("y = Optional(x)", "optional(tensor(float))", 17),
    ("s = SequenceConstruct(x)  y = Optional(s)", "optional(seq(tensor(float)))", 17),
    ("o = Optional(x)  y = OptionalGetElement(o)", "tensor(float)", 17),
    ("y = OptionalGetElement(x)", "tensor(float)", 18),
    ("o = Optional(x)  y = OptionalHasElement(o)", "tensor(bool)", 17),
    ("y = QuantizeLinear(x, f)", "tensor(uint8)", 17),
    ("y = QuantizeLinear(x, f, z)", "tensor(int8)", 17),
    ("y = QuantizeLinear<output_dtype = 3>(x, f)", "tensor(int8)", 21),
    ("y = DequantizeLinear(q, f)", "tensor(float)", 17),
    ("y = DequantizeLinear(q, hs)", "tensor(float16)", 21),
    ("y = LayerNormalization(h, h)", "tensor(float16)", 17),
    ("u, y = LayerNormalization(h, h)", "tensor(float)", 17),
    ("u, v, y = LayerNormalization<stash_type = 16>(h, h)", "tensor(bfloat16)", 17),
    ("y = BatchNormalization(h, h, h, x, x)", "tensor(float16)", 17),
    ("u, y, v = BatchNormalization<training_mode = 1>(h, h, h, x, x)", "tensor(float)", 17),
    ("y = CastLike(x, h)", "tensor(float16)", 17),
    ("y = Where(b, h, h)", "tensor(float16)", 17),
    ("y = DynamicQuantizeLinear(x)", "tensor(uint8)", 17),
]


@pytest.mark.parametrize(("nodes", "expected", "opset"), SPECIAL, ids=[n for n, _, _ in SPECIAL])
def test_operators_with_types_of_their_own(nodes: str, expected: str, opset: int) -> None:
    text = f"""
        g (float[2] x, float[2, 2] x2, float16[2] h, int64[1] i, int64 n, float f, int8 z, int8[2] q, float16 hs,
           bool[2] b) => (y) {{ {nodes} }}"""
    assert types(text, opset)["y"] == expected


def test_bit_cast_of_the_newest_opset() -> None:
    text = "g (float[2] x) => (y) { y = BitCast<to = 6>(x) }"
    assert types(text, onnx.defs.onnx_opset_version())["y"] == "tensor(int32)"


class TestBodies:
    def test_if_takes_what_its_branches_make(self) -> None:
        found = types("""
            g (float16[2] x, bool c) => (y) {
              y = If(c) <then_branch = t () => (u) { u = Neg(x) }, else_branch = e () => (v) { v = Abs(x) }>
            }""")
        assert [found[n] for n in "yuv"] == ["tensor(float16)"] * 3

    def test_if_believes_the_branch_that_is_known(self) -> None:
        found = types(
            """
            g (float[2] x, bool c) => (y) {
              y = If(c) <then_branch = t () => (u) { u = mine.Op(x) }, else_branch = e () => (v) { v = Abs(x) }>
            }""",
            domains={"mine": 1},
        )
        assert (found["u"], found["y"]) == (None, "tensor(float)")

    def test_loop_hands_its_types_in_and_out(self) -> None:
        found = types("""
            g (float16[2] x, int64 n) => (y, s) {
              y, s = Loop(n, , x) <body = b (i, c, h) => (d, z, r) { d = Identity(c)  z = Neg(h)  r = Cast<to = 1>(h) }>
            }""")
        expected = {"i": "tensor(int64)", "c": "tensor(bool)", "h": "tensor(float16)", "d": "tensor(bool)",
                    "z": "tensor(float16)", "y": "tensor(float16)", "r": "tensor(float)",
                    "s": "tensor(float)"}  # fmt: skip
        assert {n: found[n] for n in expected} == expected

    @pytest.mark.parametrize(("opset", "call"), [(8, "Scan(, x, q)"), (9, "Scan(x, q)"), (17, "Scan(x, q)")])
    def test_scan_hands_its_types_in_and_out(self, opset: int, call: str) -> None:
        found = types(
            f"""
            g (float[1, 2] x, float[1, 3, 2] q) => (y, s) {{
              y, s = {call} <num_scan_inputs = 1, body = b (h, e) => (z, r) {{ z = Add(h, e)  r = Cast<to = 10>(z) }}>
            }}""",
            opset,
        )
        assert (found["h"], found["e"], found["y"], found["s"]) == (*["tensor(float)"] * 3, "tensor(float16)")

    def test_sequence_map_takes_elements_and_makes_sequences(self) -> None:
        found = types("""
            g (float[2] x, float[2] w) => (y) {
              s = SequenceConstruct(x, x)
              y = SequenceMap(s, w) <body = b (e, v) => (r) { m = Mul(e, v)  r = Cast<to = 10>(m) }>
            }""")
        assert (found["e"], found["v"], found["r"], found["y"]) == (
            "tensor(float)", "tensor(float)", "tensor(float16)", "seq(tensor(float16))",
        )  # fmt: skip

    def test_bodies_in_bodies_see_outer_values(self) -> None:
        found = types("""
            g (bfloat16[2] x, bool c) => (y) {
              y = If(c) <then_branch = t () => (u) {
                           u = If(c) <then_branch = t2 () => (p) { p = Neg(x) },
                                      else_branch = e2 () => (q) { q = Abs(x) }>
                         }, else_branch = e () => (v) { v = Abs(x) }>
            }""")
        assert {found[n] for n in "yupqv"} == {"tensor(bfloat16)"}

    def test_initializers_of_bodies(self) -> None:
        found = types("""
            g (bool c) => (y) {
              y = If(c) <then_branch = t () => (u) <float16[1] k = {1}> { u = Neg(k) },
                         else_branch = e () => (v) <float16[1] k = {2}> { v = Abs(k) }>
            }""")
        assert (found["k"], found["y"]) == ("tensor(float16)", "tensor(float16)")


class TestDeclarations:
    def test_stale_ones_are_corrected_and_told(self) -> None:
        proto = model("g (float[2] x) => (float16[2] y) { [make] h = Cast<to = 10>(x)  y = Neg(h) }")
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2]))
        found = loaded(proto)
        assert found.index.types[1] == "tensor(float16)"
        assert [(f.kind, f.where, f.message) for f in found.findings] == [
            ("stale", "h",
             "value_info declares tensor(float), node make makes tensor(float16); the declaration was corrected")
        ]  # fmt: skip

    def test_right_ones_are_not_told(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { h = Relu(x)  y = Neg(h) }")
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2]))
        assert loaded(proto).findings == []

    def test_an_output_of_another_type_is_refused(self) -> None:
        with pytest.raises(ModelError) as refused:
            loaded(model("g (float[2] x) => (float[2] y) { y = Cast<to = 10>(x) }"))
        assert str(refused.value) == (
            "output 'y' of the main graph is declared as tensor(float), but the graph makes tensor(float16); "
            "correct the declaration or add a Cast"
        )

    def test_an_output_of_another_type_in_a_body_is_refused(self) -> None:
        with pytest.raises(ModelError, match=r"output 'u' of choose.then_branch/ is declared as tensor\(float\)"):
            loaded(
                model("""
                g (float[2] x, bool c) => (float16[2] y) {
                  [choose] y = If(c) <then_branch = t () => (float[2] u) { u = Cast<to = 10>(x) },
                                      else_branch = e () => (float16[2] v) { v = Cast<to = 10>(x) }>
                }""")
            )

    def test_shapes_are_left_alone(self) -> None:
        proto = model("g (float[2] x) => (float16[2] y) { h = Cast<to = 10>(x)  y = Neg(h) }")
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, ["N"]))
        index = loaded(proto).index
        assert str(index.values[1].shape) == "[N]"
        assert type_string(index.values[1].type) == "tensor(float16)"


def test_an_initializer_gives_its_value_a_type() -> None:
    index = indexed("g (int64 i) => (float16[1] y) <float16[1] w = {1}> { y = Neg(w) }")
    assert index.types[1] == "tensor(float16)"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("seq(tensor(float))", "tensor(float)"), ("optional(seq(tensor(float)))", "seq(tensor(float))"),
     ("tensor(float)", None), (None, None)],
)  # fmt: skip
def test_element_of(kind: str | None, expected: str | None) -> None:
    assert element_of(kind) == expected


def test_tensor_of_undefined_is_unknown() -> None:
    assert (tensor_of(0), tensor_of(1)) == (None, "tensor(float)")
