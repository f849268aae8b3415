"""The straight line in Python: what every conversion keeps, what it tells, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter import conversion, convert
from converter.errors import BatchError, InternalError, ModelError, OptionError
from converter.report.json_view import to_json
from converter.runtime.session import WholeModel
from converter.types import Conversion, ConversionRequest, PolicyOverride
from tests.models.build import drawn, loaded, model
from tests.models.run import floats
from tests.models.tiny import TINY, Tiny, tiny

MLP = tiny("mlp")


def proto_of(done: Conversion) -> onnx.ModelProto:
    assert done.model is not None
    return ir.to_proto(done.model)


def interface(proto: onnx.ModelProto) -> list[tuple[str, bytes]]:
    return [(v.name, v.type.SerializeToString()) for v in (*proto.graph.input, *proto.graph.output)]


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "narrow I/O": {"io_types": "narrow"},
    "speed": {"optimise": "speed"},
    "unchecked": {"validate": False},
    "search": {"search": True},
}


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_what_every_conversion_keeps(given: Tiny, to: str, options: dict[str, Any], rng: np.random.Generator) -> None:
    if given.name == "scan 8" and to == "bf16" and "io_types" in options:
        pytest.skip("opset 8 has no BF16; see TestRefusals")
    feeds, source = given.feeds(rng), given.model()
    done = convert(source, feeds, to=to, **options)
    made, report = proto_of(done), done.report

    onnx.checker.check_model(made, full_check=True)
    if "io_types" not in options:
        assert interface(made) == interface(source)
        if to == "fp16":  # ONNX Runtime's CPU provider knows no BF16 arithmetic
            WholeModel(made.SerializeToString()).run(feeds)
    if given.name != "condition":  # five squarings of a narrow input are what a verdict is for
        assert report.verdict.status == ("unchecked" if "validate" in options else "pass"), report.verdict

    assert [d.node_id for d in report.decisions] == list(range(report.summary.nodes))
    assert all(d.reason and d.rule for d in report.decisions)
    assert {d.format for d in report.decisions} <= {"fp32", "none", to}
    assert report.summary.narrow_nodes == sum(d.format == to for d in report.decisions)
    ours = [n for n in ir.from_proto(made).graph.all_nodes() if "narrowcast.rule" in n.metadata_props]
    assert sum(n.metadata_props["narrowcast.rule"] == "cast" for n in ours) == report.summary.casts
    json.loads(to_json(report))


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
def test_a_second_conversion_finds_nothing_to_do(given: Tiny, rng: np.random.Generator) -> None:
    """What is left FP32 was left for a reason that still holds: converting again changes no format."""
    feeds = given.feeds(rng)
    first = proto_of(convert(given.model(), feeds))
    second = convert(first, feeds)
    assert second.report.summary.casts == 0
    assert drawn(proto_of(second)) == drawn(first)


class TestCalls:
    feeds = MLP.feeds(np.random.default_rng(1))

    def test_the_given_proto_is_left_alone(self) -> None:
        source = MLP.model()
        before = source.SerializeToString()
        convert(source, self.feeds)
        assert source.SerializeToString() == before

    def test_paths_mappings_and_lists(self, tmp_path: Path) -> None:
        path = tmp_path / "m.onnx"
        onnx.save(MLP.model(), path)
        np.savez(tmp_path / "b.npz", **self.feeds)
        for samples in (self.feeds, [self.feeds], tmp_path / "b.npz", str(tmp_path / "b.npz"), [tmp_path / "b.npz"]):
            assert convert(path, samples).report.verdict.status == "pass"
        assert convert(str(path), [self.feeds] * 3).report.batches == 3

    def test_options_are_fields_of_the_request(self) -> None:
        request = ConversionRequest(to="bf16", max_rel_l2=1.0)
        assert convert(MLP.model(), self.feeds, request).report.request.to == "bf16"
        assert convert(MLP.model(), self.feeds, request, to="fp16").report.request.to == "fp16"
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'too'"):
            convert(MLP.model(), self.feeds, too="fp16")

    def test_with_an_output_the_files_are_named(self, tmp_path: Path) -> None:
        done = convert(MLP.model(), self.feeds, output=tmp_path / "o.onnx")
        assert done.model is None
        assert done.files == (str(tmp_path / "o.onnx"),)
        assert done.report.converted is not None
        assert done.report.converted.name == "o.onnx"
        assert done.report.converted.bytes == (tmp_path / "o.onnx").stat().st_size

    def test_progress_tells_the_stages_in_order(self) -> None:
        told: list[tuple[str, int, int]] = []
        convert(MLP.model(), [self.feeds] * 2, progress=lambda *stage: told.append(stage))
        order = list(dict.fromkeys(stage for stage, _, _ in told))
        assert order == ["load", "observe", "decide", "compare", "judge", "build", "rewrite"]
        assert [(d, t) for s, d, t in told if s == "observe"] == [(0, 2), (1, 2), (2, 2), (2, 2)]

    def test_timings_are_the_stages(self) -> None:
        timings = convert(MLP.model(), self.feeds).report.timings
        assert set(timings) == {"load", "observe", "decide", "compare", "judge", "build", "rewrite"}
        assert all(seconds >= 0 for seconds in timings.values())

    def test_two_runs_are_the_same_but_for_timings(self) -> None:
        first, second = (convert(MLP.model(), self.feeds) for _ in range(2))
        assert proto_of(first) == proto_of(second)
        reports = [json.loads(to_json(done.report)) for done in (first, second)]
        for report in reports:
            del report["timings"]
        assert reports[0] == reports[1]


class TestNonFinite:
    """What FP32 itself makes NaN or infinite is told, and has to be at the same places afterwards."""

    TEXT = "g (float[4] x) => (float[4] y) { [root] r = Sqrt(x)  y = Neg(r) }"

    def test_nan_and_infinity_of_the_reference_are_findings(self) -> None:
        report = convert(model(self.TEXT), {"x": floats([4, -1, np.inf, 9])}).report
        assert report.verdict.status == "pass"
        told = [f.message for f in report.findings if f.kind == "reference-nonfinite"]
        assert told == [f"value '{name}' holds 1 NaN and 1 infinite elements in FP32 already" for name in ("r", "y")]
        (row,) = report.outputs
        assert row.figures is not None
        assert (row.figures.reference_nonfinite, row.figures.value_nonfinite) == (2, 2)
        assert row.figures.misplaced_nonfinite == 0

    @pytest.mark.parametrize(
        ("x", "what"), [(floats([np.nan] * 4), "holds no finite element"), (floats([]), "is empty")]
    )
    def test_an_output_of_which_nothing_was_measured_is_a_finding(self, x: Any, what: str) -> None:
        report = convert(model(self.TEXT.replace("4", "n")), {"x": x}).report
        assert [f.message for f in report.findings if f.kind == "nothing-measured"] == [
            f"output 'y' {what} on every batch, so nothing is known about its error; add a batch"
        ]

    def test_an_infinity_that_only_narrow_arithmetic_makes_fails(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { y = Exp(x) }")
        source = model("g (float[2] x) => (float[2] y) { [grow] y = Mul(x, x) }")
        del proto
        forced = (PolicyOverride(format="fp16", node="grow", origin="test"),)
        report = convert(source, {"x": floats([300, 1])}, overrides=forced, overflow="widen", repair=False).report
        assert report.verdict.status == "fail"
        assert report.verdict.reasons[0].limit == "misplaced_nonfinite"
        assert report.verdict.reasons[0].message == (
            "output 'y': 1 NaN or infinite elements where FP32 has none, or the other way round"
        )

    def test_true_infinities_survive_a_clamping_plan(self) -> None:
        proto = model(
            "g (float[1, 4] x, float[1, 4] m) => (float[1, 4] y) { s = Add(x, m)  y = Softmax(s) }",
        )
        report = convert(proto, {"x": floats([[1, 2, 3, 4]]), "m": floats([[0, 0, -np.inf, -np.inf]])}).report
        assert report.verdict.status == "pass"
        assert report.clamps == ()


class TestNarrowModels:
    def test_one_that_is_narrow_already_stays_as_it_is(self) -> None:
        source = model("g (float16[2, 2] x) => (float16[2, 2] y) { h = MatMul(x, x)  y = Relu(h) }")
        done = convert(source, {"x": np.eye(2, dtype=np.float16)})
        assert drawn(proto_of(done)) == drawn(loaded(source).index.model)
        assert [f.message for f in done.report.findings if f.kind == "nothing-to-do"] == [
            "nothing was left to convert: every node is narrow already or stays FP32 (to fp16)"
        ]

    def test_what_is_left_is_converted(self, rng: np.random.Generator) -> None:
        given = tiny("already narrow")
        done = convert(given.model(), given.feeds(rng))
        assert done.report.summary.narrow_nodes > 0
        made = drawn(proto_of(done))
        assert made.count("Cast<") == 2  # the user's own casts, in the middle, have nothing left to do
        assert "m: float16 = Mul(h, h)" in made

    def test_values_of_the_other_format_are_left_alone(self) -> None:
        source = model("""
            g (float[2, 2] x) => (float[2, 2] y) {
              n = Cast<to = 16>(x)  m = MatMul(n, n)  c = Cast<to = 1>(m)  y = MatMul(c, c) }""")
        made = drawn(proto_of(convert(source, {"x": np.eye(2, dtype=np.float32)})))
        assert "m: bfloat16 = MatMul(n, n)" in made


class TestTraps:
    """Graphs that break other converters."""

    def both(self, text: str, feeds: dict[str, Any], opset: int = 17, **options: Any) -> tuple[str, Conversion]:
        done = convert(model(text, opset), feeds, **options)
        onnx.checker.check_model(proto_of(done), full_check=True)
        assert done.report.verdict.status == "pass"
        return drawn(proto_of(done)), done

    def test_one_value_twice_among_the_outputs(self) -> None:
        made, _ = self.both(
            "g (float[2, 2] x) => (float[2, 2] y, float[2, 2] y) { y = MatMul(x, x) }",
            {"x": np.eye(2, dtype=np.float32)},
        )
        assert made.startswith("(x: float) => (y: float, y: float)\n")

    def test_names_that_a_cast_would_like_to_have(self) -> None:
        made, _ = self.both(
            "g (float[2, 2] x, float[2, 2] x_fp16) => (float[2, 2] y_fp16, float[2, 2] y) {"
            "  y = MatMul(x, x)  y_fp16 = Add(x_fp16, y) }",
            {"x": np.eye(2, dtype=np.float32), "x_fp16": np.eye(2, dtype=np.float32)},
        )
        assert made.startswith("(x: float, x_fp16: float) => (y_fp16: float, y: float)\n")

    def test_nodes_without_names(self) -> None:
        _, done = self.both(
            "g (float[2, 2] x) => (float[2, 2] y) { h = MatMul(x, x)  y = MatMul(h, x) }",
            {"x": np.eye(2, dtype=np.float32)},
        )
        assert [d.node for d in done.report.decisions] == ["MatMul#0", "MatMul#1"]

    def test_nodes_that_share_a_name(self) -> None:
        _, done = self.both(
            "g (float[2, 2] x) => (float[2, 2] y) { [same] h = MatMul(x, x)  [same] y = MatMul(h, x) }",
            {"x": np.eye(2, dtype=np.float32)},
        )
        assert [d.node for d in done.report.decisions] == ["same", "same#1"]

    def test_an_input_nobody_reads(self) -> None:
        made, _ = self.both(
            "g (float[2, 2] x, float[2] unused) => (float[2, 2] y) { y = MatMul(x, x) }",
            {"x": np.eye(2, dtype=np.float32), "unused": np.zeros(2, np.float32)},
        )
        assert "unused: float" in made

    def test_a_constant_nobody_reads_is_kept(self) -> None:
        done = convert(
            model("g (float[2] x) => (float[2] y) <float[2] k = {1, 2}> { y = Neg(x) }"), {"x": floats([1, 2])}
        )
        assert "k: float = {1, 2}" in drawn(proto_of(done))

    def test_a_graph_without_nodes(self) -> None:
        done = convert(model("g (float[2] x) => (float[2] x) { }"), {"x": floats([1, 2])})
        assert drawn(proto_of(done)) == "(x: float) => (x: float)\n"

    def test_a_sentinel_among_constants(self) -> None:
        text = """
            g (float[1, 4] x, bool[1, 4] keep) => (float[1, 4] y) <float lowest = {-3.4028234663852886e38}> {
              s = Where(keep, x, lowest)  p = Softmax(s)  y = MatMul(p, w) }"""
        source = model(text, weights={"w": np.eye(4, dtype=np.float32)})
        feeds = {"x": floats([[1, 2, 3, 4]]), "keep": np.array([[True, True, False, False]])}
        done = convert(source, feeds)
        assert done.report.verdict.status == "pass"
        assert all(c.reason for c in done.report.constants_changed)


class TestRefusals:
    feeds = MLP.feeds(np.random.default_rng(1))

    @pytest.mark.parametrize(
        ("options", "message"),
        [({"to": "fp8"}, "option to is 'fp8'; it takes fp16 or bf16"),
         ({"io_types": "fp16"}, "option io_types is 'fp16'; it takes keep or narrow"),
         ({"overflow": "wrap"}, "option overflow is 'wrap'; it takes clamp or widen"),
         ({"optimise": "all"}, "option optimise is 'all'; it takes size or speed"),
         ({"metrics": "few"}, "option metrics is 'few'; it takes core or all"),
         ({"headroom": 0.5}, "headroom is 0.5; it must be at least 1"),
         ({"headroom": float("nan")}, "headroom is nan; it must be at least 1"),
         ({"max_rel_l2": float("nan")}, "option max_rel_l2 is nan; it takes a finite number"),
         ({"min_sqnr_db": float("inf")}, "option min_sqnr_db is inf; it takes a finite number"),
         ({"search": True, "validate": False},
          "--search measures errors and needs validation; leave out --no-validate"),
         ({"overrides": (PolicyOverride(node="zz*"),)},
          "override 'zz*' matches no float node of the model; node names look like 'Gemm#0', 'Relu#1', 'MatMul#2' "
          "(3 in all)")],
    )  # fmt: skip
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError) as refused:
            convert(MLP.model(), self.feeds, **options)
        assert str(refused.value) == message

    def test_no_samples(self) -> None:
        with pytest.raises(OptionError) as refused:
            convert(MLP.model())
        assert str(refused.value) == (
            "no sample batch was given: pass --samples FILE.npz, or --no-validate to convert unchecked"
        )
        with pytest.raises(BatchError, match=r"no sample batch was given"):
            convert(MLP.model(), [])

    def test_narrow_inputs_where_the_opset_has_no_cast(self) -> None:
        given = tiny("scan 8")
        with pytest.raises(OptionError) as refused:
            convert(given.model(), given.feeds(np.random.default_rng(0)), to="bf16", io_types="narrow")
        assert str(refused.value) == (
            "opset 8 knows no Cast to BF16, so inputs and outputs cannot be that; leave out --io-types narrow, "
            "or export the model with opset 13 or newer"
        )

    def test_a_later_batch_that_does_not_fit(self) -> None:
        with pytest.raises(BatchError, match=r"batch 'batch 1' lacks input 'x'"):
            convert(MLP.model(), [self.feeds, {}])

    def test_an_fp32_run_that_fails(self) -> None:
        source = model("g (float[N] x, float[M] z) => (float[K] y) { [sum] y = Add(x, z) }")
        with pytest.raises(ModelError, match=r"node 'sum' \(Add\) fails in FP32 on this batch: "):
            convert(source, {"x": floats([1, 2]), "z": floats([1, 2, 3])})

    def test_a_mixed_run_that_fails_is_a_verdict(self) -> None:
        """Reshape takes its size from a value that FP16 rounds up: 4.9999 becomes 5."""
        source = model("""
            g (float[1] x) => (float[K] y) <float[4] data = {1, 2, 3, 4}> {
              [half] h = Abs(x)  [whole] f = Floor(h)  i = Cast<to = 7>(f)  [shape] y = Reshape(data, i) }""")
        forced = (PolicyOverride(format="fp16", node="half"), PolicyOverride(format="fp16", node="whole"))
        report = convert(source, {"x": floats([4.9999])}, overrides=forced, repair=False).report
        assert report.verdict.status == "fail"
        (reason,) = (r for r in report.verdict.reasons if r.limit == "runs")
        assert reason.layer == "shape"
        assert reason.message.startswith("the mixed model fails at node 'shape' in batch 0: ")
        assert "requested shape:{5}" in reason.message
        assert "/" not in reason.message

    def test_a_rewrite_that_breaks_its_plan_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The written graph is run against the plan: here its Relu becomes a Neg on the way."""
        real = conversion.rewrite

        def break_it(*arguments: Any) -> Any:
            done = real(*arguments)
            next(n for n in done.model.graph if n.op_type == "Relu").op_type = "Neg"
            return done

        monkeypatch.setattr(conversion, "rewrite", break_it)
        with pytest.raises(InternalError) as caught:
            convert(MLP.model(), self.feeds)
        assert str(caught.value) == (
            "output 'y' of the rewritten model differs from its plan's; this is a bug in narrowcast"
        )
