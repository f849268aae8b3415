"""What a model must fulfil: every refusal with its text, and what is allowed although it looks odd."""

from __future__ import annotations

import onnx
import pytest

from converter.errors import ModelError
from converter.source.preconditions import MIN_OPSET, UnsupportedOpset, check_graph, check_opsets
from tests.models.build import model

NEWEST = onnx.defs.onnx_opset_version()


def refusal(proto: onnx.ModelProto) -> str:
    with pytest.raises(ModelError) as refused:
        check_graph(proto)
    return str(refused.value)


class TestOpsets:
    @pytest.mark.parametrize("opset", [MIN_OPSET, 13, NEWEST])
    def test_from_seven_to_the_newest(self, opset: int) -> None:
        check_opsets(model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset))

    def test_older_ones_are_refused(self) -> None:
        with pytest.raises(UnsupportedOpset) as refused:
            check_opsets(model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 6))
        assert str(refused.value) == (
            "the model uses opset 6; narrowcast needs at least 7. "
            "Raise it with onnx.version_converter or export it again"
        )

    def test_newer_ones_are_refused(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
        proto.opset_import[0].version = NEWEST + 1
        with pytest.raises(UnsupportedOpset) as refused:
            check_opsets(proto)
        assert str(refused.value) == (
            f"the model uses opset {NEWEST + 1}; the installed onnx {onnx.__version__} knows up to {NEWEST}. "
            "Upgrade onnx or export with a lower opset"
        )

    def test_none_is_refused_when_a_standard_node_needs_it(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
        del proto.opset_import[:]
        with pytest.raises(UnsupportedOpset, match=r"imports no version of the standard operator set; export it again"):
            check_opsets(proto)

    def test_none_is_enough_for_other_domains(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = c.Relu(x) }", domains={"c": 1})
        del proto.opset_import[0]
        check_opsets(proto)

    def test_both_names_of_the_standard_domain_count(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 6)
        proto.opset_import[0].domain = "ai.onnx"
        with pytest.raises(UnsupportedOpset, match=r"opset 6"):
            check_opsets(proto)


class TestNames:
    def test_no_outputs(self) -> None:
        assert refusal(model("g (float[2] x) => () { y = Relu(x) }")) == (
            "the model has no outputs, so there is nothing to convert or compare; mark its outputs"
        )

    def test_a_value_made_twice(self) -> None:
        assert refusal(model("g (float[2] x) => (float[2] y) { y = Relu(x)  [again] y = Neg(x) }")) == (
            "value 'y' is made twice (again by node 'again' (Neg)); each name may be made once: rename one"
        )

    def test_a_value_that_is_an_input_already(self) -> None:
        assert "value 'x' is made twice (again by a Relu node)" in refusal(
            model("g (float[2] x) => (float[2] x) { x = Relu(x) }")
        )

    def test_a_body_that_makes_an_outer_value_again(self) -> None:
        assert "value 'h' is made twice (again by a Neg node)" in refusal(
            model("""
            g (float[2] x, bool c) => (float[2] y) {
              h = Relu(x)
              y = If(c) <then_branch = t () => (float[2] h) { h = Neg(x) },
                         else_branch = e () => (float[2] v) { v = Abs(x) }>
            }""")
        )

    def test_the_same_name_in_both_branches_is_allowed(self) -> None:
        check_graph(
            model("""
            g (float[2] x, bool c) => (float[2] y) {
              y = If(c) <then_branch = t () => (float[2] h) { h = Neg(x) },
                         else_branch = e () => (float[2] h) { h = Abs(x) }>
            }""")
        )

    def test_a_body_input_may_hide_an_outer_value(self) -> None:
        check_graph(
            model("""
            g (float[2] x, int64 n) => (float[2] y) {
              y = Loop(n, , x) <body = b (int64 i, bool c, float[2] x) => (bool d, float[2] z)
                                { d = Identity(c)  z = Neg(x) }>
            }""")
        )

    def test_an_input_that_stands_there_twice(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
        proto.graph.input.append(proto.graph.input[0])
        assert refusal(proto) == "input 'x' stands there twice; each name may be made once: rename or remove one"

    def test_an_initializer_that_stands_there_twice(self) -> None:
        proto = model("g (float[1] x) => (float[1] y) <float[1] w = {1}> { y = Mul(x, w) }")
        proto.graph.initializer.append(proto.graph.initializer[0])
        assert refusal(proto).startswith("initializer 'w' stands there twice;")

    def test_an_overridable_initializer_is_input_and_initializer(self) -> None:
        check_graph(model("g (float[1] x, float[1] w = {1}) => (float[1] y) { y = Mul(x, w) }"))

    def test_a_name_nobody_makes(self) -> None:
        assert refusal(model("g (float[2] x) => (float[2] y) { [add] y = Add(x, lost) }")) == (
            "node 'add' (Add) reads 'lost', which nothing makes; the file is incomplete"
        )

    def test_a_name_nobody_makes_inside_a_body(self) -> None:
        proto = model("""
            g (float[2] x, bool c) => (float[2] y) {
              y = If(c) <then_branch = t () => (float[2] u) { u = Neg(x) },
                         else_branch = e () => (float[2] v) { v = Add(x, u) }>
            }""")
        assert refusal(proto) == "a Add node reads 'u', which nothing makes; the file is incomplete"

    def test_an_output_nobody_makes(self) -> None:
        assert refusal(model("g (float[2] x) => (float[2] z) { y = Relu(x) }")) == (
            "output 'z' of graph 'g' is never made; remove or connect it"
        )

    def test_a_body_cannot_hand_out_an_outer_value(self) -> None:
        proto = model("""
            g (float[2] x, bool c) => (float[2] y) {
              y = If(c) <then_branch = t () => (float[2] x) { },
                         else_branch = e () => (float[2] v) { v = Abs(x) }>
            }""")
        assert refusal(proto) == "output 'x' of graph 't' is never made; remove or connect it"

    @pytest.mark.parametrize("output", ["x", "w"])
    def test_an_input_or_initializer_may_be_an_output(self, output: str) -> None:
        check_graph(model(f"g (float[1] x) => (float[1] {output}) <float[1] w = {{1}}> {{ y = Relu(x) }}"))

    def test_left_out_inputs_and_outputs(self) -> None:
        check_graph(model("g (float[2] x) => (float[2] y) { y = Clip(x, , )  , i = TopK(x, k) }", weights={"k": [1]}))


class TestOrder:
    def test_any_order_without_a_cycle(self) -> None:
        check_graph(model("g (float[2] x) => (float[2] y) { y = Neg(h)  h = Add(x, k)  k = Abs(x) }"))

    def test_a_cycle(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Neg(b)  [first] a = Add(x, b)  [second] b = Relu(a) }")
        assert refusal(proto) == (
            "the graph has a cycle: node 'second' (Relu) needs its own result 'b'; the file is damaged"
        )

    def test_a_node_that_reads_itself(self) -> None:
        assert "a Add node needs its own result 'y'" in refusal(
            model("g (float[2] x) => (float[2] y) { y = Add(x, y) }")
        )

    def test_a_cycle_through_a_body(self) -> None:
        proto = model("""
            g (float[2] x, bool c) => (float[2] y) {
              [choose] y = If(c) <then_branch = t () => (float[2] u) { u = Neg(h) },
                         else_branch = e () => (float[2] v) { v = Abs(x) }>
              h = Relu(y)
            }""")
        assert "needs its own result" in refusal(proto)


class TestControlFlow:
    """What the interpreter relies on when it walks bodies itself."""

    LOOP = """
        g (float[2] x, int64 n) => (float[2] y) {
          [turn] y = Loop(n, , x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] z)
                                   { d = Identity(c)  z = Neg(h) }> }"""
    SCAN = """
        g (float[2] x, float[3, 2] q) => (float[2] y, float[3, 2] s) {
          [walk] y, s = Scan<num_scan_inputs = 1, body = b (float[2] h, float[2] e) => (float[2] o, float[2] r)
                                                         { o = Add(h, e)  r = Neg(e) }>(x, q) }"""
    IF = """
        g (float[2] x, bool c) => (float[2] y) {
          [choose] y = If(c) <then_branch = t () => (float[2] u) { u = Neg(x) },
                              else_branch = e () => (float[2] v) { v = Abs(x) }> }"""

    @pytest.mark.parametrize("text", [LOOP, SCAN, IF])
    def test_whole_ones_are_fine(self, text: str) -> None:
        check_graph(model(text))

    def test_a_scan_of_opset_8(self) -> None:
        check_graph(model(self.SCAN.replace("(x, q)", "(, x, q)"), 8))

    @pytest.mark.parametrize(
        ("text", "where", "names"),
        [(LOOP, "node 'turn' (Loop)", "body"), (SCAN, "node 'walk' (Scan)", "body"),
         (IF, "node 'choose' (If)", "then_branch, else_branch")],
    )  # fmt: skip
    def test_a_body_that_is_not_there(self, text: str, where: str, names: str) -> None:
        proto = model(text)
        last = next(a for a in proto.graph.node[0].attribute if a.type == onnx.AttributeProto.GRAPH)
        proto.graph.node[0].attribute.remove(last)
        assert refusal(proto) == f"{where} lacks a body ({names}); the file is damaged"

    def test_a_body_that_is_no_graph(self) -> None:
        body = onnx.helper.make_attribute("body", onnx.helper.make_tensor("t", onnx.TensorProto.FLOAT, [], [1.0]))
        node = onnx.helper.make_node("Loop", ["", "", "x"], ["y"])
        node.attribute.append(body)
        proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
        proto.graph.node[0].CopyFrom(node)
        assert refusal(proto) == "a Loop node lacks a body (body); the file is damaged"

    def test_a_loop_without_a_condition(self) -> None:
        proto = model("""
            g (float[2] x, int64 n) => (float[N, 2] s) {
              [turn] s = Loop(n) <body = b (int64 i, bool c) => (bool d, float[2] r) { d = Identity(c)  r = Neg(x) }>
            }""")
        assert refusal(proto) == (
            "node 'turn' (Loop) has 1 inputs and 1 outputs, which do not fit its body 'b' with 2 and 2; "
            "the file is damaged"
        )

    @pytest.mark.parametrize("text", [LOOP, SCAN, IF])
    def test_an_input_too_many_or_too_few(self, text: str) -> None:
        for change in (lambda names: names.append("x"), lambda names: names.pop()):
            proto = model(text)
            change(proto.graph.node[0].input)
            assert "which do not fit its body" in refusal(proto)

    @pytest.mark.parametrize("text", [LOOP, SCAN, IF])
    def test_an_output_too_many(self, text: str) -> None:
        proto = model(text)
        proto.graph.node[0].output.append("more")
        assert "which do not fit its body" in refusal(proto)

    def test_a_scan_that_does_not_say_what_it_scans(self) -> None:
        proto = model(self.SCAN)
        attribute = next(a for a in proto.graph.node[0].attribute if a.name == "num_scan_inputs")
        proto.graph.node[0].attribute.remove(attribute)
        assert "which do not fit its body" in refusal(proto)


def test_a_map_is_refused_by_name() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.output.append(
        onnx.helper.make_value_info(
            "z",
            onnx.helper.make_sequence_type_proto(
                onnx.helper.make_map_type_proto(
                    onnx.TensorProto.INT64, onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
                )
            ),
        )
    )
    assert refusal(proto) == (
        "'z' is a map, which narrowcast cannot carry; export the model without ZipMap (scikit-learn: "
        "options={'zipmap': False}), so that it gives a plain tensor"
    )
