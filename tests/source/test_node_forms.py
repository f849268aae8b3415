"""Nodes that do not fit their schemas are refused by name."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest

from converter.errors import ModelError
from converter.source.node_forms import check_nodes
from tests.models.build import model

TEXT = """g (float[4] x) => (float[4] y) <float lo = {0}> {
    [root] r = LeakyRelu <alpha = 0.1> (x)  [clip] c = Clip(r, lo, "")  [own] y = Add(c, c) }"""


def test_left_out_optional_inputs_and_unknown_operators_pass() -> None:
    proto = model(TEXT)
    proto.graph.node[2].op_type = "Unknown"
    check_nodes(proto)


def test_the_region_of_a_resize_may_be_left_out_early() -> None:
    text = """g (float[1, 1, 2, 2] x, float[4] s) => (float[1, 1, 4, 4] y) { y = Resize(x, "", s) }"""
    check_nodes(model(text, 11))


def without_input(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].input[1] = ""


def with_three(proto: onnx.ModelProto) -> None:
    proto.graph.node[2].input.append("x")


def with_untyped(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.UNDEFINED


def with_integer(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.INT


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_input, "node 'own' (Add) leaves out its input 'B', which it needs; connect it"),
        (with_three, "node 'own' (Add) has 3 inputs and takes 2; the file is damaged"),
        (
            with_untyped,
            "attribute 'alpha' of node 'root' (LeakyRelu) is of type UNDEFINED and should be FLOAT; the file is "
            "damaged",
        ),
        (
            with_integer,
            "attribute 'alpha' of node 'root' (LeakyRelu) is of type INT and should be FLOAT; the file is damaged",
        ),
    ],
)
def test_what_does_not_fit(damage: Callable[[onnx.ModelProto], None], message: str) -> None:
    proto = model(TEXT)
    damage(proto)
    with pytest.raises(ModelError) as refused:
        check_nodes(proto)
    assert str(refused.value) == message


def test_names_that_are_no_text() -> None:
    data = model(TEXT).SerializeToString().replace(b"root", b"r\xff\xfet")
    with pytest.raises(ModelError, match="a name in the file is no UTF-8 text"):
        check_nodes(onnx.ModelProto.FromString(data))


def test_an_operator_that_came_later() -> None:
    proto = model("g (float[2] x) => (float[2] y) { y = Celu(x) }", 9)
    with pytest.raises(ModelError) as refused:
        check_nodes(proto)
    assert str(refused.value) == (
        "a Celu node needs opset 12 and the model imports opset 9; export the model again at opset 12 or newer"
    )
