"""The grammar of a mixed model: each planted fault is found and named."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import pytest

from converter.errors import InternalError
from converter.graph import index_model
from converter.rewrite.check import check_structure, check_types, interface, narrowed
from tests.models.build import catalog, indexed, value
from tests.models.tiny import TINY, Tiny

TEXT = """
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {1, 2}> {
      [first] h = Mul(x, w)  [second] k = Neg(h)
      [choose] y = If(c) <then_branch = t () => (float[2] u) { [inner] u = Abs(k) },
                          else_branch = e () => (float[2] u) { u = Neg(h) }> }"""


def fault(change: Callable[[ir.Model], None], text: str = TEXT) -> str:
    """What the check says after a change."""
    made = indexed(text).model
    given = interface(made)
    change(made)
    with pytest.raises(InternalError) as caught:
        check_structure(made, given, "ThePass")
    message = str(caught.value)
    assert message.startswith("after ThePass: ")
    assert message.endswith("; this is a bug in narrowcast")
    return message.removeprefix("after ThePass: ").removesuffix("; this is a bug in narrowcast")


def named(made: ir.Model, name: str) -> ir.Node:
    return next(n for n in made.graph.all_nodes() if n.name == name)


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
def test_what_was_loaded_is_in_order(given: Tiny) -> None:
    index = given.index()
    check_structure(index.model, interface(index.model), "load")
    check_types(index, interface(index.model))


class TestStructure:
    def test_an_input_that_was_renamed(self) -> None:
        assert fault(lambda m: setattr(m.graph.inputs[0], "name", "z")) == (
            "graph inputs are ['z', 'c'] instead of ['x', 'c']"
        )

    def test_an_output_that_was_renamed(self) -> None:
        assert fault(lambda m: setattr(m.graph.outputs[0], "name", "z")) == "graph outputs are ['z'] instead of ['y']"

    def test_an_output_too_many(self) -> None:
        assert fault(lambda m: m.graph.outputs.append(named(m, "first").outputs[0])) == (
            "graph outputs are ['y', 'h'] instead of ['y']"
        )

    def test_nodes_out_of_order(self) -> None:
        def swap(made: ir.Model) -> None:
            node = named(made, "first")
            made.graph.remove(node)
            made.graph.append(node)

        assert fault(swap) == "node 'second' (Neg) reads 'h' before it is made"

    def test_a_value_nobody_makes(self) -> None:
        def lose(made: ir.Model) -> None:
            named(made, "second").replace_input_with(0, ir.Value(name="lost"))

        assert fault(lose) == "node 'second' (Neg) reads 'lost' before it is made"

    def test_a_value_of_another_scope(self) -> None:
        def leak(made: ir.Model) -> None:
            inner = named(made, "inner").outputs[0]
            branches = named(made, "choose").attributes["else_branch"].as_graph()
            branches[0].replace_input_with(0, inner)

        assert fault(leak).endswith("reads 'u' before it is made")

    def test_a_name_twice_in_one_scope(self) -> None:
        assert fault(lambda m: setattr(named(m, "second").outputs[0], "name", "h")) == "value name 'h' is made twice"

    def test_a_name_of_a_body_that_hides_an_outer_one(self) -> None:
        assert fault(lambda m: setattr(named(m, "inner").outputs[0], "name", "h")) == "value name 'h' is made twice"

    def test_a_graph_output_nobody_makes(self) -> None:
        def cut(made: ir.Model) -> None:
            made.graph.outputs[0] = ir.Value(name="y")

        assert fault(cut) == "graph output 'y' is never made"


class TestTypes:
    def problem(self, text: str, name: str, dtype: ir.DataType) -> str:
        index = indexed(text)
        given = interface(index.model)
        index.values[value(index, name)].type = ir.TensorType(dtype)
        with pytest.raises(InternalError) as caught:
            check_types(index_model(index.model, catalog()), given)
        return str(caught.value)

    def test_a_type_the_schema_does_not_know(self) -> None:
        assert self.problem(
            "g (float[2] x) => (float[2] y) { [n] h = Exp(x)  y = Neg(h) }", "h", ir.DataType.INT32
        ) == (
            "after the last pass: node 'n' (Exp): output 0 ('h') is tensor(int32), which the schema does not allow; "
            "this is a bug in narrowcast"
        )

    def test_two_types_in_one_variable(self) -> None:
        text = "g (float[2] x, int32[2] z) => (float[2] y) { h = Cast<to = 1>(z)  [sum] k = Add(x, h)  y = Neg(k) }"
        assert self.problem(text, "h", ir.DataType.FLOAT16) == (
            "after the last pass: node 'sum' (Add): input 1 ('h') is tensor(float16), others there tensor(float); "
            "this is a bug in narrowcast"
        )

    def test_an_interface_that_changed(self) -> None:
        message = self.problem("g (float[2] x) => (float[2] y) { y = Neg(x) }", "x", ir.DataType.FLOAT16)
        assert message.startswith("after the last pass: the interface is Interface(inputs=(('x', 'tensor(float16)'),)")
        assert "instead of Interface(inputs=(('x', 'tensor(float)'),)" in message

    def test_heterogeneous_variadic_ports_may_differ(self) -> None:
        index = indexed("""
            g (float[2] x, float16[2] h, int64 n) => (float[2] y, float16[2] z) {
              y, z = Loop(n, , x, h) <body = b (int64 i, bool c, float[2] p, float16[2] q)
                                      => (bool d, float[2] r, float16[2] s) {
                d = Identity(c)  r = Neg(p)  s = Neg(q) }> }""")
        check_types(index, interface(index.model))


def test_a_narrowed_interface() -> None:
    given = interface(indexed("g (float[2] x, int64 n, float16[2] h) => (float[2] y) { y = Neg(x) }").model)
    found = narrowed(given, "tensor(bfloat16)")
    assert found.inputs == (("x", "tensor(bfloat16)"), ("n", "tensor(int64)"), ("h", "tensor(float16)"))
    assert found.outputs == (("y", "tensor(bfloat16)"),)
