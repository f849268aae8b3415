"""FP16 results load with ONNX Runtime's optimiser on: the mix is made coarser until they do, or the user is told."""

from __future__ import annotations

from itertools import cycle

import onnx_ir as ir
import pytest

from converter import conversion, convert
from converter.errors import InternalError, OptionError
from converter.runtime import loading
from converter.runtime.loading import loading_problem
from converter.runtime.session import Threads
from converter.types import PolicyOverride
from tests.models.build import model
from tests.models.run import floats

NORM = """
    g (float[2, 4] x) => (float[2, 4] y)
      <float[4] gain = {1, 2, 3, 4}, float[4] offset = {4, 3, 2, 1}, float eps = {0.00001}, float two = {2}> {
      m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  s = Pow(d, two)  v = ReduceMean<axes = [-1]>(s)
      a = Add(v, eps)  r = Sqrt(a)  q = Div(d, r)  [scale] n = Mul(q, gain)  [shift] y = Add(n, offset) }"""
"""ONNX Runtime fuses this to one LayerNormalization, and does so too where a Cast stands before ``scale``."""

MLP = "g (float[2, 4] x, float[4, 4] w) => (float[2, 4] y) { h = MatMul(x, w)  [act] a = Relu(h)  y = Sin(a) }"

FEEDS = {"x": floats([[1, 2, 3, 5], [2, 4, 8, -1]])}


def test_a_mix_the_optimiser_breaks_is_laid_at_the_override_that_forced_it() -> None:
    forced = tuple(PolicyOverride("fp16", node=n, origin=f"rule '{n}'") for n in ("scale", "shift"))
    with pytest.raises(OptionError) as caught:
        convert(model(NORM, 17), FEEDS, overrides=forced)
    said = str(caught.value)
    assert said.startswith("ONNX Runtime cannot load the model with what rule 'scale', rule 'shift' narrows: ")
    assert "LayerNormalization" in said
    assert said.endswith("; let the policy decide there")


def test_left_to_the_policy_the_same_model_loads_and_passes() -> None:
    done = convert(model(NORM, 17), FEEDS)
    assert done.report.verdict.status == "pass"
    assert done.model is not None
    assert loading_problem(done.model, Threads()) is None


class TestCoarser:
    """A runtime that dislikes some operators in FP16 stands for the fusions of ONNX Runtime not met yet."""

    feeds = FEEDS | {"w": floats([[1, 0, 0, 2], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]])}

    def narrow_ops(self, made: ir.Model) -> set[str]:
        return {
            n.op_type
            for n in made.graph
            if n.op_type != "Cast" and any(v.dtype == ir.DataType.FLOAT16 for v in n.outputs)
        }

    def disliking(self, monkeypatch: pytest.MonkeyPatch, *op_types: str) -> None:
        def problem(made: ir.Model, _: Threads) -> str | None:
            return "no such kernel" if self.narrow_ops(made) & set(op_types) else None

        monkeypatch.setattr(conversion, "loading_problem", problem)

    def test_nothing_is_coarser_without_need(self) -> None:
        done = convert(model(MLP, 17), self.feeds)
        assert done.model is not None
        assert {"MatMul", "Relu"} <= self.narrow_ops(done.model)
        assert not [f for f in done.report.findings if f.kind == "coarser"]

    def test_operators_that_move_values_stay_fp32_when_they_break_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disliking(monkeypatch, "Relu")
        done = convert(model(MLP, 17), self.feeds)
        assert done.report.verdict.status == "pass"
        assert done.model is not None
        assert self.narrow_ops(done.model) == {"MatMul"}
        (finding,) = (f for f in done.report.findings if f.kind == "coarser")
        assert finding.message == (
            "operators of the classes exact, follow stay FP32: ONNX Runtime's optimiser cannot load the first mix "
            "(no such kernel)"
        )
        (act,) = (d for d in done.report.decisions if d.node == "act")
        assert (act.rule, act.reason) == (
            "loads",
            "ONNX Runtime's optimiser makes an invalid model of a finer mix of formats (measured by loading it)",
        )

    def test_a_given_model_that_does_not_load_either_is_no_reason(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(conversion, "loading_problem", lambda *_: "no such kernel")
        done = convert(model(MLP, 17), self.feeds)
        assert done.report.verdict.status == "pass"
        assert not [f for f in done.report.findings if f.kind == "coarser"]

    def test_the_last_mix_narrows_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disliking(monkeypatch, "MatMul")
        done = convert(model(MLP, 17), self.feeds)
        assert done.model is not None
        assert self.narrow_ops(done.model) == set()
        assert [f.kind for f in done.report.findings if f.kind in ("coarser", "nothing-to-do")] == [
            "coarser",
            "nothing-to-do",
        ]

    def test_a_mix_that_never_loads_is_our_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The rewritten model is tried first, then the given one, for every mix."""
        answers = cycle(("no such kernel", None))
        monkeypatch.setattr(conversion, "loading_problem", lambda *_: next(answers))
        with pytest.raises(InternalError) as caught:
            convert(model(MLP, 17), self.feeds)
        assert str(caught.value) == (
            "ONNX Runtime does not load the rewritten model: no such kernel; this is a bug in narrowcast"
        )


class TestLoadingProblem:
    def test_a_model_that_loads_has_none(self) -> None:
        assert loading_problem(ir.from_proto(model(MLP, 17)), Threads()) is None

    def test_what_the_optimiser_says(self) -> None:
        made = ir.from_proto(model(NORM.replace("n = Mul(q, gain)", "c = Neg(q)  n = Bogus(c, gain)"), 17))
        said = loading_problem(made, Threads())
        assert said is not None
        assert "Bogus" in said

    def test_large_models_are_not_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("converter.runtime.loading.MAX_BYTES", 8)
        made = ir.from_proto(model(NORM.replace("n = Mul(q, gain)", "n = Bogus(q, gain)"), 17))
        assert loading_problem(made, Threads()) is None

    TURNED = "g (float[2, 4] x) => (float[2, 2] y) { t = Transpose<perm = [1, 0]>(x)  y = MatMul(x, t) }"

    def test_a_load_that_ends_its_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = ir.from_proto(model(self.TURNED, 17))
        assert loading_problem(made, Threads()) is None
        monkeypatch.setattr(loading, "_LOAD", "import os; os.kill(os.getpid(), 11)")
        assert loading_problem(made, Threads()) == "its optimiser ends the process with SIGSEGV"
        assert loading_problem(ir.from_proto(model(MLP, 17)), Threads()) is None
        monkeypatch.setattr(loading, "_LOAD", "import os; os.kill(os.getpid(), 9)")
        assert loading_problem(made, Threads()) is None

    def test_where_no_process_can_be_had(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading.sys, "executable", "/missing")
        assert loading_problem(ir.from_proto(model(self.TURNED, 17)), Threads()) is None
