"""Several formats in lock step: a plan and its file are the same bits; streams may part, and that is told."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from converter.formats import BF16, FP16, FloatFormat
from converter.graph import ModelIndex
from converter.runtime.formatting import FormatSpec, declared_formats, planned_formats
from converter.runtime.interpreter import Interpreter
from converter.types import EmulationProfile
from tests.models.build import indexed, value
from tests.models.run import assert_same, plan_of, rewritten, run
from tests.models.tiny import TINY, Tiny, feeds_for

each_target = pytest.mark.parametrize("to", ["fp16", "bf16"])


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
@each_target
@pytest.mark.parametrize("narrow_io", [False, True], ids=["keep", "narrow"])
def test_a_plan_and_its_file_are_the_same_bits(given: Tiny, to: str, narrow_io: bool, rng: np.random.Generator) -> None:
    index, feeds = given.index(), given.feeds(rng)
    plan = plan_of(index, [feeds], to=to, io_types="narrow" if narrow_io else "keep")
    planned = run(index, feeds, declared_formats(index), planned_formats(index, plan)).outputs[1]
    file = rewritten(index, plan, narrow_io)
    assert planned is not None
    assert_same(planned, run(file, feeds).outputs[0])


@pytest.mark.parametrize("profile", ["ascend", "ieee"])
@pytest.mark.parametrize("scale", [1.0, 3e4])
def test_the_same_bits_under_a_profile_and_at_the_edge(profile: str, scale: float, rng: np.random.Generator) -> None:
    settings = EmulationProfile("ascend", overflow="saturate", flush_subnormals=True)
    chosen = settings if profile == "ascend" else EmulationProfile()
    given = next(t for t in TINY if t.name == "attention")
    index = given.index()
    feeds = {"x": (scale * rng.standard_normal((1, 4, 8))).astype(np.float32)}
    plan = plan_of(index, [feeds], to="fp16")
    planned = run(index, feeds, declared_formats(index), planned_formats(index, plan), profile=chosen).outputs[1]
    assert planned is not None
    assert_same(planned, run(rewritten(index, plan), feeds, profile=chosen).outputs[0])


def test_a_plan_with_every_node_wide_is_the_model_bit_for_bit(rng: np.random.Generator) -> None:
    for given in TINY:
        index, feeds = given.index(), given.feeds(rng)
        reference = declared_formats(index)
        found = run(index, feeds, reference, declared_formats(index, "again")).outputs
        assert found[0] is not None
        assert_same(found[0], found[1])


def narrowed(index: ModelIndex, fmt: FloatFormat, *names: str) -> FormatSpec:
    """A spec that stores some values narrow."""
    spec = declared_formats(index, "mixed")
    for name in names:
        spec.stored[value(index, name)] = fmt
    return spec


RANDOM = [
    "y = RandomNormal<shape = [64]>()",
    "y = RandomUniform<shape = [64]>()",
    "y = RandomNormalLike(x)",
    "y = RandomUniformLike(x)",
    "p = Sigmoid(x)  y = Bernoulli(p)",
    "l = Unsqueeze(x, zero)  s = Multinomial<sample_size = 64>(l)  f = Cast<to = 1>(s)  y = Squeeze(f, zero)",
    "y, m = Dropout(x, half, go)",
]


class TestRandom:
    def index(self, nodes: str) -> ModelIndex:
        return indexed(f"""
            g (float[64] x) => (float[64] y) <int64[1] zero = {{0}}, float half = {{0.5}}, bool go = {{1}}>
            {{ {nodes} }}""")

    @pytest.mark.parametrize("nodes", RANDOM)
    def test_all_streams_see_the_same_draw(self, nodes: str, rng: np.random.Generator) -> None:
        index, feeds = self.index(nodes), {"x": rng.standard_normal(64).astype(np.float32)}
        first, second = run(index, feeds, declared_formats(index), declared_formats(index)).outputs
        assert first is not None
        assert np.unique(first["y"]).size > 1
        assert_same(first, second)

    @pytest.mark.parametrize("nodes", RANDOM)
    def test_draws_repeat_with_the_seed_and_change_with_it(self, nodes: str, rng: np.random.Generator) -> None:
        index, feeds = self.index(nodes), {"x": rng.standard_normal(64).astype(np.float32)}
        once, again, other = (run(index, feeds, seed=s).outputs[0] for s in (3, 3, 4))
        assert once is not None
        assert other is not None
        assert_same(once, again)
        assert not np.array_equal(once["y"], other["y"])

    def test_a_seed_in_the_model_counts(self) -> None:
        index = self.index("y = RandomNormal<shape = [64], seed = 7.0>()")
        feeds = {"x": np.zeros(64, np.float32)}
        one, other = (run(index, feeds, seed=s).outputs[0] for s in (1, 2))
        assert one is not None
        assert_same(one, other)

    def test_two_nodes_draw_differently(self) -> None:
        index = self.index("a = RandomNormalLike(x)  b = RandomNormalLike(x)  y = Sub(a, b)")
        found = run(index, {"x": np.zeros(64, np.float32)}).outputs[0]
        assert found is not None
        assert np.abs(found["y"]).min() > 0

    def test_iterations_draw_differently(self) -> None:
        index = indexed("""
            g (int64 n) => (float[N, 4] y) {
              y = Loop(n, , ) <body = b (int64 i, bool c) => (bool d, float[4] r) {
                    d = Identity(c)  r = RandomNormal<shape = [4]>() }> }""")
        found = run(index, {"n": np.array(2)}).outputs[0]
        assert found is not None
        assert not np.array_equal(found["y"][0], found["y"][1])

    def test_batches_draw_the_same(self) -> None:
        index = self.index("y = RandomNormalLike(x)")
        interpreter, spec = Interpreter(index), declared_formats(index)
        feeds = {"x": np.zeros(64, np.float32)}
        first, second = (interpreter.run(feeds, [spec]).outputs[0] for _ in range(2))
        assert first is not None
        assert_same(first, second)


class TestDivergence:
    """1.004 becomes 1 in BF16: streams take another branch, count or index."""

    feeds: ClassVar = {"x": np.array([1.003], np.float32)}

    def findings(self, index: ModelIndex, feeds: dict[str, Any], *names: str) -> tuple[list[str], Any]:
        interpreter = Interpreter(index)
        result = interpreter.run(feeds, [declared_formats(index), narrowed(index, BF16, *names)])
        return [f"{f.where}: {f.message}" for f in interpreter.findings if f.kind == "diverged"], result

    def test_another_branch(self) -> None:
        index = indexed("""
            g (float[1] x) => (float[1] y) <float[1] one = {1}> {
              h = Identity(x)  c = Greater(h, one)
              [choose] y = If(c) <then_branch = t () => (float[1] u) { u = Neg(x) },
                                  else_branch = e () => (float[1] v) { v = Abs(x) }> }""")
        found, result = self.findings(index, self.feeds, "x", "h")
        assert found == ["choose: the FP32 and the narrow run take different branches of this If"]
        assert result.outputs[0]["y"] == pytest.approx(-1.003)
        assert result.outputs[1]["y"] == 1.0

    def test_another_count(self) -> None:
        index = indexed("""
            g (float[1] x) => (float[1] y, float[N, 1] s) <float[1] limit = {4}, bool go = {1}> {
              k = Mul(x, x)
              [grow] y, s = Loop(, go, k) <body = b (int64 i, bool c, float[1] h) => (bool d, float[1] z, float[1] r) {
                  z = Mul(h, h)  d = Less(z, limit)  r = Identity(z) }> }""")
        found, result = self.findings(index, {"x": np.array([1.2], np.float32)}, "k")
        assert found == []
        # BF16 makes 1.1875 of it, whose eighth power is 3.95: one more round than in FP32, where it is 4.02.
        found, result = self.findings(index, {"x": np.array([1.1899], np.float32)}, "x")
        assert found == ["grow: the FP32 and the narrow run leave this Loop after different counts (at 2)"]
        assert [len(o["s"]) for o in result.outputs] == [2, 3]

    def test_another_shape(self) -> None:
        index = indexed("""
            g (float[4] x) => (int64[1, N] y) <float[1] one = {1}> { h = Sub(x, one)  y = NonZero(h) }""")
        _, result = self.findings(index, {"x": np.array([1.003, 2, 3, 1], np.float32)}, "x")
        assert [o["y"].shape for o in result.outputs] == [(1, 3), (1, 2)]

    def test_another_index(self) -> None:
        index = indexed("g (float[3] x, int64[1] k) => (int64[1] i) { v, i = TopK(x, k) }")
        _, result = self.findings(index, {"x": np.array([1.0, 1.003, 0.5], np.float32), "k": np.array([1])}, "x")
        assert [o["i"].tolist() for o in result.outputs] == [[1], [0]]

    def test_sequences_of_another_length(self) -> None:
        index = indexed("""
            g (float[6, 1] x, float n) => (float[N, 1] y) {
              f = Floor(n)  i = Cast<to = 7>(f)  s = SplitToSequence<axis = 0>(x, i)
              m = SequenceMap(s) <body = b (float[K, 1] e) => (float[K, 1] r) { r = Neg(e) }>
              y = ConcatFromSequence<axis = 0>(m) }""")
        _, result = self.findings(index, {"x": np.ones((6, 1), np.float32), "n": np.array(2.996, np.float32)}, "n")
        assert [o["y"].tolist() for o in result.outputs] == [[[-1.0]] * 6] * 2

    def test_scans_of_another_length(self) -> None:
        index = indexed("""
            g (float[4] x, float[1] h) => (float[1] y, float[N, 1] s) <float[1] one = {1}> {
              k = Sub(x, one)  i = NonZero(k)  t = Transpose<perm = [1, 0]>(i)  q = Cast<to = 1>(t)
              [walk] y, s = Scan<num_scan_inputs = 1, body = b (float[1] a, float[1] e) => (float[1] o, float[1] r) {
                 o = Add(a, e)  r = Identity(o) }>(h, q) }""")
        found, result = self.findings(
            index, {"x": np.array([1.003, 2, 3, 1], np.float32), "h": np.zeros(1, np.float32)}, "x"
        )
        assert found == ["walk: the FP32 and the narrow run scan sequences of different lengths"]
        assert [len(o["s"]) for o in result.outputs] == [3, 2]

    def test_a_divergence_is_told_once(self) -> None:
        index = indexed("""
            g (float[1] x) => (float[1] y) <float[1] one = {1}> {
              h = Identity(x)  c = Greater(h, one)
              y = If(c) <then_branch = t () => (float[1] u) { u = Neg(x) },
                         else_branch = e () => (float[1] v) { v = Abs(x) }> }""")
        interpreter = Interpreter(index)
        for _ in range(3):
            interpreter.run(self.feeds, [declared_formats(index), narrowed(index, BF16, "x", "h")])
        assert len(interpreter.findings) == 1


class TestRounding:
    def test_a_value_is_rounded_once_for_all_its_narrow_readers(self) -> None:
        index = indexed("g (float[1] x) => (float[1] y) { a = Neg(x)  b = Abs(x)  y = Add(a, b) }")
        spec = declared_formats(index, "mixed")
        for name in ("a", "b"):
            spec.reads[index.producer[value(index, name)]] = (FP16,)
        seen: list[Any] = []

        class Watch:
            def value(self, value_id: int, values: Any) -> None:
                pass

            def step(self, run: Interpreter, step: Any, streams: Any) -> None:
                seen.append(run.gather(streams[1], step)[0])

        Interpreter(index).run({"x": np.array([1.0001], np.float32)}, [declared_formats(index), spec], [Watch()])
        assert seen[0] is seen[1]
        assert seen[0][0] == 1.0

    def test_a_clip_stands_before_the_cast(self) -> None:
        index = indexed("g (float[3] x) => (float[3] y) { y = Abs(x) }")
        spec = narrowed(index, FP16, "y")
        spec.reads[0] = (FP16,)
        spec.cast_bounds[value(index, "x")] = 100.0
        found = run(index, {"x": np.array([-1e6, np.nan, 50.03], np.float32)}, declared_formats(index), spec).outputs[1]
        assert found is not None
        np.testing.assert_array_equal(found["y"], np.array([100, np.nan, 50.03125], np.float32))

    def test_a_clip_stands_behind_the_node(self) -> None:
        index = indexed("g (float[2] x) => (float[2] y) { y = Mul(x, x) }")
        spec = narrowed(index, FP16, "y")
        spec.output_bounds[value(index, "y")] = FP16.max_finite
        found = run(index, {"x": np.array([1e3, 2.0], np.float32)}, declared_formats(index), spec).outputs[1]
        assert found is not None
        np.testing.assert_array_equal(found["y"], [65504, 4])


def test_feeds_are_drawn_for_every_input(rng: np.random.Generator) -> None:
    for given in TINY:
        index = given.index()
        wanted = {v.name for v in index.model.graph.inputs} - set(index.model.graph.initializers)
        assert set(feeds_for(index, rng)) == wanted
