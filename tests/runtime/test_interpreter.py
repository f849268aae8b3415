"""The evaluator against ONNX Runtime: the reference stream is the whole graph's run, bit for bit."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest

from converter.errors import ModelError
from converter.formats import BF16
from converter.graph import ModelIndex
from converter.runtime.formatting import FormatSpec, declared_formats
from converter.runtime.interpreter import Interpreter
from converter.runtime.session import Threads
from tests.models.build import indexed, loaded, model, node, value
from tests.models.run import assert_same, outputs, run, whole
from tests.models.tiny import TINY, Tiny, feeds_for

WITHOUT_NARROW = [t for t in TINY if t.name != "already narrow"]


@pytest.mark.parametrize("given", WITHOUT_NARROW, ids=lambda t: t.name)
def test_the_reference_is_onnx_runtime_bit_for_bit(given: Tiny, rng: np.random.Generator) -> None:
    feeds = given.feeds(rng)
    assert_same(whole(given.model(), feeds), outputs(given.index(), feeds))


UNARY = ("Relu", "Tanh", "Sigmoid", "Exp", "Neg", "Abs", "Sqrt", "Erf", "Softplus", "Floor")
BINARY = ("Add", "Sub", "Mul", "Div", "MatMul", "Max", "Min", "PRelu", "Pow")


def random_graph(rng: np.random.Generator, nodes: int) -> str:
    """A graph of 4 x 4 matrices in which each node reads earlier values, duplicates and constants included."""
    names = ["x", "z", "w"]
    lines = []
    for k in range(nodes):
        a, b = rng.choice(names, 2)
        kind = rng.integers(6)
        made = f"v{k}"
        if kind < 2:
            lines.append(f"{made} = {rng.choice(UNARY)}({a})")
        elif kind < 4:
            lines.append(f"{made} = {rng.choice(BINARY)}({a}, {b})")
        elif kind == 4:
            lines.append(f"t{k} = Transpose<perm = [1, 0]>({a})  {made} = Gemm<transB = 1>(t{k}, {b}, w)")
        else:
            lines.append(f"m{k} = ReduceMean<axes = [1], keepdims = 1>({a})  {made} = Sub({b}, m{k})")
        names.append(made)
    return f"g (float[4, 4] x, float[4, 4] z) => (float[4, 4] {names[-1]}) {{ {'  '.join(lines)} }}"


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    proto = model(random_graph(rng, 12), weights={"w": rng.standard_normal((4, 4)).astype(np.float32)})
    feeds = {n: rng.standard_normal((4, 4)).astype(np.float32) for n in ("x", "z")}
    assert_same(whole(proto, feeds), outputs(loaded(proto).index, feeds))


@pytest.mark.parametrize("opset", [7, 8, 9, 11, 13, 17, 21, 24])
def test_opsets(opset: int, rng: np.random.Generator) -> None:
    number = ", num_outputs = 2" if opset > 17 else ""
    proto = model(
        f"""g (float[2, 4] x) => (float[2, 4] y) {{
             h = MatMul(x, w)  r = Relu(h)  c = Concat<axis = 0>(r, x)  s = Softmax<axis = 1>(c)
             a, b = Split<axis = 0{number}>(s)  y = Add(a, b) }}""",
        opset,
        weights={"w": rng.standard_normal((4, 4)).astype(np.float32)},
    )  # fmt: skip
    feeds = {"x": rng.standard_normal((2, 4)).astype(np.float32)}
    assert_same(whole(proto, feeds), outputs(loaded(proto).index, feeds))


def test_runs_repeat_bit_for_bit(rng: np.random.Generator) -> None:
    index = next(t for t in TINY if t.name == "attention").index()
    feeds = feeds_for(index, rng)
    interpreter = Interpreter(index)
    spec = declared_formats(index)
    first = interpreter.run(feeds, [spec]).outputs[0]
    again = interpreter.run(feeds, [spec]).outputs[0]
    assert first is not None
    assert_same(first, again)
    assert_same(first, outputs(index, feeds))


class TestInputs:
    def test_an_overridable_initializer_has_a_default_and_can_be_given(self) -> None:
        index = next(t for t in TINY if t.name == "defaults").index()
        x = np.eye(2, dtype=np.float32)
        np.testing.assert_array_equal(outputs(index, {"x": x})["y"], [[1, 2], [3, 4]])
        np.testing.assert_array_equal(outputs(index, {"x": x, "w": 2 * x})["y"], 2 * x)

    @pytest.mark.parametrize(("given", "expected"), [(np.array([1.0, 2.0], np.float32), True), (None, False)])
    def test_an_optional_input_with_and_without_an_element(self, given: Any, expected: bool) -> None:
        index = indexed("g (optional(float[2]) o) => (bool y) { y = OptionalHasElement(o) }", 18)
        assert bool(outputs(index, {"o": given})["y"]) is expected

    def test_a_dimension_that_changes_between_batches(self) -> None:
        index = indexed("g (float[N, 2] x) => (float[M, 2] y) { y = Relu(x) }")
        interpreter, spec = Interpreter(index), declared_formats(index)
        for size in (1, 3, 0):
            made = interpreter.run({"x": np.ones((size, 2), np.float32)}, [spec]).outputs[0]
            assert made is not None
            assert made["y"].shape == (size, 2)

    def test_arrays_that_are_not_contiguous(self, rng: np.random.Generator) -> None:
        index = indexed("g (float[3, 4] x) => (float[3, 4] y) { y = Neg(x) }")
        x = rng.standard_normal((4, 3)).astype(np.float32).T
        np.testing.assert_array_equal(outputs(index, {"x": x})["y"], -x)


class TestTypes:
    def test_fp64_stays_fp64(self) -> None:
        """1 + 1e-12 is lost in FP32; between two casts it must not be."""
        index = indexed("""
            g (double[1] x) => (double[1] y) <double[1] one = {1.0}> {
              a = Add(x, one)  b = Sub(a, one)  y = Identity(b) }""")
        assert outputs(index, {"x": np.array([1e-12])})["y"][0] == pytest.approx(1e-12, rel=1e-3)

    @pytest.mark.parametrize(
        ("to", "opset"),
        [("FLOAT8E4M3FN", 19), ("FLOAT8E5M2", 19), ("INT4", 21), ("UINT4", 21)],
    )
    def test_element_types_numpy_lacks_pass_through(self, to: str, opset: int) -> None:
        number = getattr(onnx.TensorProto, to)
        text = f"g (float[2] x) => (float[2] y) {{ q = Cast<to = {number}>(x)  y = Cast<to = 1>(q) }}"
        proto = model(text, opset)
        x = np.array([1.0, 3.0], np.float32)
        assert_same(whole(proto, {"x": x}), outputs(loaded(proto).index, {"x": x}))

    def test_declared_narrow_values_are_rounded_and_held_as_float32(self) -> None:
        index = indexed("g (float[2] x) => (float16[2] y, float[2] z) { y = Cast<to = 10>(x)  z = Cast<to = 1>(y) }")
        found = outputs(index, {"x": np.array([1.0001, 70000.0], np.float32)})
        assert found["y"].dtype == np.float32
        np.testing.assert_array_equal(found["y"], [1.0, np.inf])
        np.testing.assert_array_equal(found["z"], [1.0, np.inf])

    def test_fp64_to_fp16_rounds_once(self) -> None:
        """ONNX Runtime goes through FP32, which makes 65519.9999999 an infinity."""
        index = indexed("g (double[1] x) => (float16[1] y) { y = Cast<to = 10>(x) }")
        assert outputs(index, {"x": np.array([65519.9999999])})["y"][0] == 65504.0

    def test_bf16_arithmetic_runs_without_a_kernel(self) -> None:
        index = indexed("g (float[2] x) => (bfloat16[2] y) { n = Cast<to = 16>(x)  y = Mul(n, n) }")
        np.testing.assert_array_equal(outputs(index, {"x": np.array([1.01, 3.0], np.float32)})["y"], [1.015625, 9.0])


class TestFailures:
    def failing(self) -> tuple[ModelIndex, FormatSpec, FormatSpec]:
        """A Reshape whose target is computed from a value: narrow arithmetic asks for another size."""
        index = indexed("""
            g (float[1] x) => (float[M] y) <float[4] data = {1, 2, 3, 4}> {
              n = Floor(x)  i = Cast<to = 7>(n)  [shape] y = Reshape(data, i) }""")
        narrow = declared_formats(index, "mixed")
        narrow.stored[value(index, "n")] = BF16
        narrow.reads[node(index, "n")] = (BF16,)
        return index, declared_formats(index), narrow

    def test_a_failing_reference_names_the_node(self) -> None:
        index, spec, _ = self.failing()
        with pytest.raises(ModelError) as refused:
            run(index, {"x": np.array([3.0], np.float32)}, spec)
        assert str(refused.value).startswith("node 'shape' (Reshape) fails in FP32 on this batch: ")
        assert str(refused.value).endswith("; check that the batch fits the model")

    def test_a_failing_other_stream_is_told_and_the_reference_goes_on(self) -> None:
        index, spec, narrow = self.failing()
        assert run(index, {"x": np.array([4.001], np.float32)}, spec, narrow).failures == (None, None)
        result = run(index, {"x": np.array([4.99], np.float32)}, spec, narrow)  # BF16 makes 5 of it
        assert result.outputs[0] is not None
        assert result.outputs[1] is None
        assert result.failures[0] is None
        assert result.failures[1] is not None
        label, message = result.failures[1]
        assert label == "shape"
        assert message

    def test_a_node_without_a_kernel(self) -> None:
        index = indexed("g (double[2] x) => (double[2] y) { [lone] y = HardSwish(x) }", 24)
        with pytest.raises(ModelError) as refused:
            run(index, {"x": np.zeros(2)})
        assert str(refused.value).startswith("node 'lone' (HardSwish): ONNX Runtime's CPU provider cannot run it (")
        assert str(refused.value).endswith(
            "so the model cannot be compared; use --no-validate to convert without running it"
        )


class TestMemory:
    def test_values_are_freed_after_their_last_reader(self) -> None:
        """A chain of 40 values of 1 MiB: never more than a few are alive."""
        steps = "  ".join(f"v{k + 1} = Neg(v{k})" for k in range(40))
        index = indexed(f"g (float[262144] v0) => (float[262144] v40) {{ {steps} }}")
        alive: list[int] = []

        class Count:
            def value(self, value_id: int, values: Any) -> None:
                pass

            def step(self, run: Interpreter, step: Any, streams: Any) -> None:
                alive.append(len(streams[0]._values))

        Interpreter(index).run({"v0": np.ones(262144, np.float32)}, [declared_formats(index)], [Count()])
        assert max(alive) <= 2

    def test_values_that_bodies_read_live_until_the_owner_is_done(self, rng: np.random.Generator) -> None:
        index = indexed("""
            g (float[2] x, int64 n) => (float[2] y, float[2] z) {
              k = Exp(x)
              y = Loop(n, , x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] o) {
                    d = Identity(c)  o = Add(h, k) }>
              z = Neg(y) }""")
        made = outputs(index, {"x": np.zeros(2, np.float32), "n": np.array(5)})
        np.testing.assert_array_equal(made["y"], [5, 5])

    def test_an_output_nobody_reads_is_freed_at_once(self) -> None:
        index = indexed("g (float[4] x) => (float[4] y) { u = Exp(x)  y = Neg(x) }")
        freed = [s.frees for s in Interpreter(index).program.scopes[0]]
        assert value(index, "u") in freed[0]


class TestCrumbs:
    def test_every_node_is_named_before_it_runs(self) -> None:
        index = next(t for t in TINY if t.name == "branch").index()
        crumbs: list[str] = []
        outputs(index, feeds_for(index, np.random.default_rng(0)), breadcrumb=crumbs.append)
        assert [index.nodes[index.labels.index(c)].op_type for c in crumbs] == ["MatMul", "If", "MatMul", "Mul"]


class TestThreads:
    def test_a_library_call_leaves_global_state_alone(self) -> None:
        """The shared pool is for a process of our own: here ordinary sessions must go on working."""
        import onnxruntime as ort

        outputs(indexed("g (float[2] x) => (float[2] y) { y = Neg(x) }"), {"x": np.ones(2, np.float32)})
        proto = model("g (float[2] x) => (float[2] y) { y = Abs(x) }")
        session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [1, 1]
        assert Threads() == Threads(1, shared=False)


def test_sessions_are_shared_by_equal_nodes() -> None:
    steps = "  ".join(f"v{k + 1} = Neg(v{k})" for k in range(10))
    interpreter = Interpreter(indexed(f"g (float[2] v0) => (float[2] v10) {{ {steps} }}"))
    interpreter.run({"v0": np.ones(2, np.float32)}, [declared_formats(interpreter.index)])
    assert len(interpreter.runner._cache) == 1


def test_streams_of_equal_inputs_run_a_kernel_once() -> None:
    index = indexed("g (float[2] x) => (float[2] y) { h = Neg(x)  y = Abs(h) }")
    interpreter = Interpreter(index)
    calls: list[str] = []
    execute = interpreter.execute

    def counted(step: Any, *more: Any) -> list[Any]:
        calls.append(step.op_type)
        return execute(step, *more)

    interpreter.execute = counted  # type: ignore[method-assign]
    spec = declared_formats(index)
    interpreter.run({"x": np.ones(2, np.float32)}, [spec, spec, spec])
    assert calls == ["Neg", "Abs"]


def test_operators_have_all_combinations_of_left_out_inputs(rng: np.random.Generator) -> None:
    x = rng.standard_normal(4).astype(np.float32)
    for low, high in itertools.product(("", "low"), ("", "high")):
        proto = model(f"g (float[4] x) => (float[4] y) <float low = {{-0.5}}, float high = {{0.5}}> "
                      f"{{ y = Clip(x, {low}, {high}) }}")  # fmt: skip
        assert_same(whole(proto, {"x": x}), outputs(loaded(proto).index, {"x": x}))
