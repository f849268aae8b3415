"""If, Loop, Scan and SequenceMap at their edges, against ONNX Runtime where it has an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.errors import ModelError
from converter.formats import BF16
from converter.runtime.formatting import declared_formats
from tests.models.build import indexed, loaded, model, value
from tests.models.run import assert_same, floats, outputs, run, whole

LOOP = """
    g (float[2] x, int64 n) => (float[2] y, float[K, 2] s) {
      y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] z, float[2] r) {
        d = Identity(c)  r = Neg(h)  z = Abs(h) }> }"""
CONDITION = """
    g (float[2] x, bool go) => (float[2] y) {
      y = Loop(, go, x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] z) <int64 t = {3}> {
        d = Less(i, t)  z = Add(h, h) }> }"""
SCAN = """
    g (float[2] h, float[N, 2] q, float[M, 2] p) => (float[2] y, float[N, 2] s) {
      y, s = Scan<num_scan_inputs = 2, body = b (float[2] i, float[2] e, float[2] f) => (float[2] o, float[2] r) {
        o = Add(i, e)  r = Mul(o, f) }>(h, q, p) }"""
X = floats([1, -2])


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (LOOP, {"x": X, "n": np.array(2)}),
        (LOOP, {"x": X, "n": np.array(0)}),
        (LOOP, {"x": X, "n": np.array(-3)}),
        (LOOP.replace("int64 n", "int64[1] n"), {"x": X, "n": np.array([2])}),
        (CONDITION, {"x": X, "go": np.array(True)}),
        (CONDITION, {"x": X, "go": np.array(False)}),
        (SCAN, {"h": X, "q": np.ones((3, 2), np.float32), "p": np.ones((3, 2), np.float32)}),
        (
            """g (float[2] x, bool[1] c) => (float[2] y) {
                 y = If(c) <then_branch = t () => (float[2] u) { u = Neg(x) },
                            else_branch = e () => (float[2] u) <float[2] u = {5, 6}> { }> }""",
            {"x": X, "c": np.array([False])},
        ),
        (
            """g (float[2] x, int64 n) => (float[N] y) {
                 e = SequenceEmpty()
                 s = Loop(n, , e) <body = b (int64 i, bool c, seq(float[2]) h) => (bool d, seq(float[2]) z) {
                   d = Identity(c)  z = SequenceInsert(h, x) }>
                 y = ConcatFromSequence<axis = 0>(s) }""",
            {"x": X, "n": np.array(3)},
        ),
        (
            """g (float[2] x, int64 n) => (float[2] y, float[K, 2] s) {
                 y, s = Loop(n, , x) <body = b (int64 i, bool c, float[2] h)
                                       => (bool c, float[2] h, float[2] h) { }> }""",
            {"x": X, "n": np.array(2)},
        ),
        (
            """g (float[N] x, int64 n) => (float[M] y) {
                 y = Loop(n, , x) <body = b (int64 i, bool c, float[N] h) => (bool d, float[M] z) {
                   d = Identity(c)  z = Concat<axis = 0>(h, x) }> }""",
            {"x": X, "n": np.array(3)},
        ),
        (
            """g (seq(float[2]) a, seq(float[2]) b) => (seq(float[2]) y) {
                 y = SequenceMap(a, b) <body = f (float[2] p, float[2] q) => (float[2] r) { r = Add(p, q) }> }""",
            {"a": [X, X], "b": [X, X]},
        ),
        (
            """g (seq(float[2]) a) => (seq(float[2]) y) {
                 y = SequenceMap(a) <body = f (float[2] p) => (float[2] r) { r = Neg(p) }> }""",
            {"a": []},
        ),
    ],
    ids=["loop", "no trips", "negative trips", "trip count of rank 1", "condition", "never", "two scanned",
         "condition of rank 1", "sequence carried", "inputs handed out", "growing state", "two sequences",
         "empty sequence"],
)  # fmt: skip
def test_as_onnx_runtime(text: str, feeds: dict[str, Any]) -> None:
    proto = model(text)
    assert_same(whole(proto, feeds), outputs(loaded(proto).index, feeds))


REFUSED = [
    (
        SCAN,
        {"h": X, "q": np.ones((3, 2), np.float32), "p": np.ones((2, 2), np.float32)},
        "the scanned sequences have different lengths [3, 2]",
    ),
    (
        SCAN,
        {"h": X, "q": np.ones((0, 2), np.float32), "p": np.ones((0, 2), np.float32)},
        "the scanned sequence is empty",
    ),
    (
        """g (float[N] x, int64 n) => (float[M] y, float[K, M] s) {
             y, s = Loop(n, , x) <body = b (int64 i, bool c, float[N] h) => (bool d, float[M] z, float[M] r) {
               d = Identity(c)  z = Concat<axis = 0>(h, x)  r = Neg(z) }> }""",
        {"x": X, "n": np.array(3)},
        "iterations make values of different shapes, [4] and [6]",
    ),
    (
        """g (seq(float[2]) a, seq(float[2]) b) => (seq(float[2]) y) {
             y = SequenceMap(a, b) <body = f (float[2] p, float[2] q) => (float[2] r) { r = Add(p, q) }> }""",
        {"a": [X, X], "b": [X]},
        "the mapped sequences have different lengths [2, 1]",
    ),
    (
        """g (seq(float[2]) a, int64 k) => (float[2] y) { y = SequenceAt(a, k) }""",
        {"a": [X], "k": np.array(1)},
        "sequence position 1 is outside a sequence of 1 elements",
    ),
]


@pytest.mark.parametrize(("text", "feeds", "message"), REFUSED, ids=[m for _, _, m in REFUSED])
def test_what_cannot_be_run_is_refused_by_name(text: str, feeds: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refused:
        outputs(indexed(text), feeds)
    assert f"fails in FP32 on this batch: {message}; check that the batch fits the model" in str(refused.value)


class TestOneStreamAlone:
    """What only the narrow run cannot do is its own failure; the reference goes on."""

    def run(self, text: str, feeds: dict[str, Any], *names: str) -> Any:
        index = indexed(text)
        spec = declared_formats(index, "mixed")
        for name in names:
            spec.stored[value(index, name)] = BF16
        return run(index, feeds, declared_formats(index), spec)

    def test_iterations_of_different_shapes(self) -> None:
        result = self.run(
            """g (float[2] x, int64 n) => (int64[K, 1, M] s) <float[1] one = {1}> {
                 [collect] s = Loop(n, , ) <body = b (int64 i, bool c) => (bool d, int64[1, M] r) {
                   d = Identity(c)  f = Cast<to = 1>(i)  k = Add(x, f)  m = Sub(k, one)  r = NonZero(m) }> }""",
            {"x": floats([1.003, 5]), "n": np.array(2)},
            "k",
        )
        assert result.failures[0] is None
        assert result.failures[1] == ("collect", "iterations make values of different shapes, [1, 1] and [1, 2]")
        assert result.outputs[0]["s"].shape == (2, 1, 2)

    def test_scanned_sequences_of_different_lengths(self) -> None:
        result = self.run(
            """g (float[3] x, float[3, 1] q) => (float[N, 1] s) <float[1] one = {1}> {
                 k = Sub(x, one)  i = NonZero(k)  t = Transpose<perm = [1, 0]>(i)  p = Cast<to = 1>(t)
                 [walk] s = Scan<num_scan_inputs = 2, body = b (float[1] e, float[1] f) => (float[1] r) {
                   r = Add(e, f) }>(q, p) }""",
            {"x": floats([1.003, 2, 3]), "q": np.ones((3, 1), np.float32)},
            "x",
        )
        assert result.failures == (None, ("walk", "the scanned sequences have different lengths [3, 2]"))

    def test_an_empty_scan(self) -> None:
        result = self.run(
            """g (float[1] x) => (float[N, 1] s) <float[1] one = {1}> {
                 k = Sub(x, one)  i = NonZero(k)  t = Transpose<perm = [1, 0]>(i)  p = Cast<to = 1>(t)
                 [walk] s = Scan<num_scan_inputs = 1, body = b (float[1] e) => (float[1] r) { r = Neg(e) }>(p) }""",
            {"x": floats([1.003])},
            "x",
        )
        assert result.failures == (None, ("walk", "the scanned sequence is empty"))

    def test_a_node_inside_a_body(self) -> None:
        result = self.run(
            """g (float[1] x, bool c) => (float[N] y) <float[2] data = {1, 2}> {
                 h = Floor(x)
                 y = If(c) <then_branch = t () => (float[N] u) { i = Cast<to = 7>(h)  [inner] u = Reshape(data, i) },
                            else_branch = e () => (float[N] v) { v = Neg(data) }> }""",
            {"x": floats([2.999]), "c": np.array(True)},
            "x",
        )
        assert result.failures[0] is None
        assert result.failures[1] is not None
        assert result.failures[1][0] == "inner"
        assert result.outputs[0]["y"].tolist() == [1, 2]

    def test_a_sequence_position(self) -> None:
        result = self.run(
            """g (seq(float[1]) q, float x) => (float[1] y) {
                 f = Floor(x)  i = Cast<to = 7>(f)  [take] y = SequenceAt(q, i) }""",
            {"q": [X[:1]] * 2, "x": np.array(1.999, np.float32)},
            "x",
        )
        assert result.failures == (None, ("take", "sequence position 2 is outside a sequence of 2 elements"))


def test_outputs_of_a_node_with_bodies_can_be_left_out() -> None:
    index = indexed("""
        g (float[2] x, bool c) => (float[2] y) {
          , y = If(c) <then_branch = t () => (float[2] a, float[2] b) { a = Neg(x)  b = Abs(x) },
                       else_branch = e () => (float[2] a, float[2] b) { a = Abs(x)  b = Neg(x) }> }""")
    assert outputs(index, {"x": X, "c": np.array(True)})["y"].tolist() == [1, 2]
