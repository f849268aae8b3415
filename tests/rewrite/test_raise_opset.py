"""Raising the operator set: every adapter against ONNX Runtime's own runs before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.rewrite.adapters import ADAPTERS, CannotAdapt
from converter.rewrite.raise_opset import raise_opset
from converter.source.type_propagation import propagate_types
from tests.models.build import catalog, drawing, drawn, loaded, model
from tests.models.run import assert_same, floats, whole
from tests.models.tiny import TINY, Tiny


def raised(proto: onnx.ModelProto, target: int) -> tuple[onnx.ModelProto, bool]:
    """The raised model, checked in full, and whether a node was adapted."""
    made = loaded(proto).index.model
    adapted = raise_opset(made, target, catalog())
    propagate_types(made, catalog())
    written = ir.to_proto(made)
    onnx.checker.check_model(written, full_check=True)
    return written, adapted


def x(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


ADAPTED: list[tuple[str, int, int, str, dict[str, Any]]] = [
    ("BatchNormalization", 9, 8,
     "g (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[3] s = {1, 2, 3}, float[3] b = {1, 0, 1},"
      " float[3] m = {0, 1, 0}, "
     "float[3] v = {1, 2, 1}> { y = BatchNormalization<spatial = 1>(x, s, b, m, v) }", {"x": x(2, 3, 4)}),
    ("BatchNormalization", 14, 9,
     "g (float[2, 3, 4] x) => (float[2, 3, 4] y) <float[3] s = {1, 2, 3}, float[3] b = {1, 0, 1},"
      " float[3] m = {0, 1, 0}, "
     "float[3] v = {1, 2, 1}> { y = BatchNormalization(x, s, b, m, v) }", {"x": x(2, 3, 4)}),
    ("Clip", 11, 7, "g (float[4] x) => (float[4] y) { y = Clip<min = -0.5, max = 0.5>(x) }", {"x": x(4)}),
    ("Clip", 11, 7, "g (float[4] x) => (float[4] y) { y = Clip<max = 0.5>(x) }", {"x": x(4)}),
    ("DFT", 20, 17, "g (float[1, 8, 1] x) => (float[1, 8, 2] y) { y = DFT(x) }", {"x": x(1, 8, 1)}),
    ("DFT", 20, 17, "g (float[1, 8, 4, 1] x) => (float[1, 8, 4, 2] y) { y = DFT<axis = 2>(x) }", {"x": x(1, 8, 4, 1)}),
    ("Dropout", 10, 7, "g (float[4] x) => (float[4] y) { y = Dropout(x) }", {"x": x(4)}),
    ("Dropout", 12, 10, "g (float[4] x) => (float[4] y) { y = Dropout<ratio = 0.9>(x) }", {"x": x(4)}),
    ("GridSample", 20, 16, "g (float[1, 1, 3, 3] x, float[1, 2, 2, 2] q) => (float[1, 1, 2, 2] y) "
     '{ y = GridSample<mode = "bilinear">(x, q) }', {"x": x(1, 1, 3, 3), "q": 0.3 * x(1, 2, 2, 2)}),
    ("GridSample", 20, 16, "g (float[1, 1, 3, 3] x, float[1, 2, 2, 2] q) => (float[1, 1, 2, 2] y) "
     '{ y = GridSample<mode = "bicubic">(x, q) }', {"x": x(1, 1, 3, 3), "q": 0.3 * x(1, 2, 2, 2)}),
    ("Hardmax", 13, 11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Hardmax<axis = 1>(x) }", {"x": x(2, 3, 4)}),
    ("LogSoftmax", 13, 11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = LogSoftmax(x) }", {"x": x(2, 3, 4)}),
    ("Softmax", 13, 11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax(x) }", {"x": x(2, 3, 4)}),
    ("Softmax", 13, 11, "g (float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Softmax<axis = -2>(x) }", {"x": x(2, 3, 4)}),
    ("Softmax", 13, 11, "g (float[2, 4] x) => (float[2, 4] y) { y = Softmax(x) }", {"x": x(2, 4)}),
    ("Softmax", 13, 7, "g (float[2, 4] x) => (float[2, 4] y) { y = Softmax<axis = 0>(x) }", {"x": x(2, 4)}),
    ("Pad", 11, 7, "g (float[2, 2] x) => (float[4, 3] y) { y = Pad<pads = [1, 0, 1, 1],"
     " value = 2.5>(x) }", {"x": x(2, 2)}),
    ("Pad", 11, 7, 'g (float[3] x) => (float[5] y) { y = Pad<mode = "reflect", pads = [1, 1]>(x) }', {"x": x(3)}),
    ("ReduceSum", 13, 11, "g (float[2, 3] x) => (float[3] y) { y = ReduceSum<axes = [0],"
     " keepdims = 0>(x) }", {"x": x(2, 3)}),
    ("ReduceSum", 13, 11, "g (float[2, 3] x) => (float[1, 1] y) { y = ReduceSum(x) }", {"x": x(2, 3)}),
    ("Resize", 11, 10, "g (float[1, 1, 2, 3] x) => (float[1, 1, 4, 6] y) <float[4] s = {1, 1, 2, 2}> "
     "{ y = Resize(x, s) }",
     {"x": x(1, 1, 2, 3)}),
    ("Resize", 11, 10, "g (float[1, 1, 2, 3] x) => (float[1, 1, 4, 6] y) <float[4] s = {1, 1, 2, 2}> "
     '{ y = Resize<mode = "linear">(x, s) }', {"x": x(1, 1, 2, 3)}),
    ("RoiAlign", 16, 10, "g (float[1, 1, 6, 6] x, float[1, 4] r) => (float[1, 1, 2, 2] y) <int64[1] i = {0}> "
     "{ y = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, i) }",
     {"x": x(1, 1, 6, 6), "r": floats([[0, 0, 4, 4]])}),
    ("Scatter", 11, 9, "g (float[3] x, float[1] u) => (float[3] y) <int64[1] i = {1}> { y = Scatter(x, i, u) }",
     {"x": x(3), "u": x(1)}),
    ("Slice", 10, 7, "g (float[4, 4] x) => (float[2, 4] y) { y = Slice<axes = [0], starts = [1], ends = [3]>(x) }",
     {"x": x(4, 4)}),
    ("Slice", 10, 7, "g (float[4, 4] x) => (float[3, 3] y) { y = Slice<starts = [1, 0], ends = [9,"
     " -1]>(x) }", {"x": x(4, 4)}),
    ("Split", 13, 11, "g (float[3] x) => (float[1] y, float[2] z) { y, z = Split<axis = 0, split = [1,"
     " 2]>(x) }", {"x": x(3)}),
    ("Split", 18, 13, "g (float[4] x) => (float[2] y, float[2] z) { y, z = Split(x) }", {"x": x(4)}),
    ("Split", 18, 11, "g (float[3] x) => (float[1] y, float[2] z) { y, z = Split<axis = 0, split = [1,"
     " 2]>(x) }", {"x": x(3)}),
    ("Squeeze", 13, 11, "g (float[1, 3] x) => (float[3] y) { y = Squeeze<axes = [0]>(x) }", {"x": x(1, 3)}),
    ("Squeeze", 13, 11, "g (float[1, 3] x) => (float[3] y) { y = Squeeze(x) }", {"x": x(1, 3)}),
    ("TopK", 10, 9, "g (float[5] x) => (float[2] y, int64[2] i) { y, i = TopK<k = 2>(x) }", {"x": x(5)}),
    ("Unsqueeze", 13, 11, "g (float[3] x) => (float[1, 3, 1] y) { y = Unsqueeze<axes = [0, 2]>(x) }", {"x": x(3)}),
    ("Upsample", 9, 7, "g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) { y = Upsample<scales = [1.0, 1.0,"
     " 2.0, 2.0]>(x) }",
     {"x": x(1, 1, 2, 2)}),
    ("Upsample", 10, 9, "g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y) <float[4] s = {1, 1, 2, 2}> "
     '{ y = Upsample<mode = "linear">(x, s) }', {"x": x(1, 1, 2, 2)}),
] + [
    (op_type, 18, 13, f"g (float[2, 3] x) => (float[2,"
     f" 1] y) {{ y = {op_type}<axes = [1]>(x) }}", {"x": np.abs(x(2, 3)) + 1})
    for op_type in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
                    "ReduceProd", "ReduceSumSquare")
]  # fmt: skip

REFUSED: list[tuple[str, int, int, str, str]] = [
    ("BatchNormalization", 9, 8, "g (float[2, 3] x) => (float[2, 3] y) "
     "{ [bn] y = BatchNormalization<spatial = 0>(x, x, x, x,"
      " x) }", "BatchNormalization with spatial=0 ended with opset 9"),
    ("BatchNormalization", 14, 9, "g (float[2, 3] x, float[3] s) => (float[2, 3] y, float[3] m) "
     "{ [bn] y, m = BatchNormalization(x, s, s, s,"
      " s) }", "BatchNormalization's training outputs changed with opset 14"),
    ("Dropout", 10, 7, "g (float[4] x) => (float[4] y, float[4] m) { y, m = Dropout(x) }",
     "Dropout's mask became boolean with opset 10"),
    ("Scan", 9, 8, "g (float[1, 2] h, float[1, 3, 2] q) => (float[1, 2] y) { y = Scan<num_scan_inputs = 1, "
     "body = b (float[2] i, float[2] e) => (float[2] o) { o = Add(i, e) }>(, h, q) }",
     "Scan lost its batch axis with opset 9"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op_type", "version", "opset", "text", "feeds"),
    ADAPTED,
    ids=[f"{o}-{v}-{k}" for k, (o, v, *_) in enumerate(ADAPTED)],
)
def test_an_adapted_node_gives_the_same_numbers(
    op_type: str, version: int, opset: int, text: str, feeds: dict[str, Any]
) -> None:
    before = model(text, opset)
    after, adapted = raised(before, version)
    assert adapted
    expected, got = whole(before, feeds), whole(after, feeds)
    assert list(expected) == list(got)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-7)  # a few FP32 roundings in another order


@pytest.mark.parametrize(
    ("op_type", "version", "opset", "text", "reason"), REFUSED, ids=[f"{o}-{v}" for o, v, *_ in REFUSED]
)
def test_what_cannot_be_adapted_is_refused(op_type: str, version: int, opset: int, text: str, reason: str) -> None:
    with pytest.raises(CannotAdapt) as refused:
        raise_opset(ir.from_proto(model(text, opset)), version, catalog())
    assert str(refused.value) == reason


def test_every_adapter_is_tested() -> None:
    tested = {(op_type, version) for op_type, version, *_ in (*ADAPTED, *REFUSED)}
    assert set(ADAPTERS) == tested


class TestDrawn:
    def test_softmax_of_a_flattened_matrix(self) -> None:
        before = model("g (float[2, 3, 4] x) => (float[2, 3, 4] y) { h = Softmax(x)  y = Neg(h) }", 11)
        after, _ = raised(before, 13)
        assert drawn(after) == drawing("""
            (x: float) => (y: float)
              x_shape: int64 = Shape(x)
              x_flat: float = Flatten<axis=1>(x)
              h_flat: float = Softmax<axis=-1>(x_flat)
              h: float = Reshape(h_flat, x_shape)
              y: float = Neg(h)
        """)

    def test_an_attribute_becomes_a_constant(self) -> None:
        after, _ = raised(model("g (float[1, 3] x) => (float[3] y) { [s] y = Squeeze<axes = [0]>(x) }", 11), 13)
        assert drawn(after) == drawing("""
            (x: float) => (y: float)
              s_axes: int64 = Constant<value={0}>()
              y: float = Squeeze(x, s_axes)
        """)

    def test_inside_bodies(self) -> None:
        before = model(
            """g (float[1, 3] x, bool c) => (float[3] y) {
                 y = If(c) <then_branch = t () => (float[3] u) { u = Squeeze<axes = [0]>(x) },
                            else_branch = e () => (float[3] v) { v = Squeeze<axes = [0]>(x) }> }""",
            11,
        )
        after, _ = raised(before, 13)
        assert drawn(after).count("Squeeze(x, Squeeze_axes") == 2
        feeds = {"x": floats([[1, 2, 3]]), "c": np.array(True)}
        assert_same(whole(before, feeds), whole(after, feeds))

    def test_new_nodes_say_why_they_are_there(self) -> None:
        after, _ = raised(model("g (float[1, 3] x) => (float[3] y) { y = Squeeze<axes = [0]>(x) }", 11), 13)
        assert [(p.key, p.value) for p in after.graph.node[0].metadata_props] == [("narrowcast.rule", "raised opset")]


class TestWhole:
    @pytest.mark.parametrize("given", [t for t in TINY if t.opset >= 9], ids=lambda t: t.name)
    def test_tiny_models_to_22_give_the_same_numbers(self, given: Tiny, rng: np.random.Generator) -> None:
        feeds = given.feeds(rng)
        after, _ = raised(given.model(), 22)
        assert_same(whole(given.model(), feeds), whole(after, feeds))

    def test_opset_7_to_22_step_by_step(self, rng: np.random.Generator) -> None:
        given = next(t for t in TINY if t.name == "old")
        feeds = given.feeds(rng)
        after, adapted = raised(given.model(), 22)
        assert adapted
        expected, got = whole(given.model(), feeds), whole(after, feeds)
        np.testing.assert_allclose(got["y"], expected["y"], rtol=1e-6)

    def test_the_same_text_is_not_called_adapted(self) -> None:
        after, adapted = raised(model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 14), 22)
        assert not adapted
        assert (after.opset_import[0].version, after.ir_version) == (22, 10)

    def test_the_other_name_of_the_standard_domain(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Relu(x) }", 14)
        proto.opset_import[0].domain = "ai.onnx"
        after, _ = raised(proto, 17)
        assert [(o.domain, o.version) for o in after.opset_import] == [("", 17)]

    def test_an_operator_that_ended(self) -> None:
        made = ir.from_proto(model("g (float[2] x) => (float[2] y) { [old] y = Scatter(x, x, x) }", 9))
        made.graph[0].op_type = "ConstantFill"
        with pytest.raises(CannotAdapt, match=r"operator ConstantFill of node 'old' ended before opset 10"):
            raise_opset(made, 10, catalog())

    def test_an_attribute_that_ended(self) -> None:
        made = ir.from_proto(model("g (float[2] x) => (float[2] y) { y = Relu<old = 1>(x) }", 12))
        with pytest.raises(CannotAdapt, match=r"attribute 'old' of Relu ended with opset 13"):
            raise_opset(made, 13, catalog())
