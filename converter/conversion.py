"""One conversion after loading: observe, decide, prove, rewrite, write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.assembly import Parts, assemble, output_rows
from converter.compare.expected import expected_errors, explained_errors
from converter.compare.provider import ProviderFigures, judge_provider, measure_on_provider
from converter.compare.run import Comparison
from converter.compare.tolerances import allowed_for
from converter.compare.verdict import judge
from converter.cost import node_flops
from converter.errors import InternalError
from converter.formats import NARROW_FORMATS, FloatFormat
from converter.graph import ModelIndex, index_model
from converter.handing_back import Outcome
from converter.numerics.exact import differing
from converter.policy.context import Context, Mix
from converter.policy.decide import decide
from converter.proof import Proof, Prover
from converter.ranges.batches import Batches
from converter.ranges.constants import measure_constant, survey_constants
from converter.ranges.observe import PATIENCE, observe
from converter.report import build
from converter.rewrite.apply import Rewritten, rewrite
from converter.rewrite.check import check_types, interface, narrowed
from converter.rewrite.stream import WeightStream
from converter.run import Run
from converter.runtime.formatting import FormatSpec, declared_formats, planned_formats
from converter.runtime.interpreter import Interpreter
from converter.runtime.loading import loading_problem
from converter.runtime.providers import chosen_provider, target_kernels
from converter.runtime.session import CastInto
from converter.source.final_check import checker_problem, forget_inner_shapes
from converter.source.onnx_file import LoadedModel
from converter.source.save import SavedModel, save
from converter.source.type_propagation import propagate_types
from converter.types import (
    Conversion,
    Finding,
    OpClass,
    OutputComparison,
    OutputTolerance,
    PrecisionPlan,
    ValueRange,
    Verdict,
)


class DoesNotLoad(Exception):
    """ONNX Runtime's optimiser cannot load the rewritten model although it loads the given one."""


class Stages:
    """One conversion after loading: the remaining six stages."""

    def __init__(
        self,
        run: Run,
        loaded: LoadedModel,
        batches: Batches | None,
        reload: Callable[[], LoadedModel],
        mix: Mix,
    ) -> None:
        self.run = run
        self.reload = reload
        self.mix = mix
        self.request = run.request
        self.loaded = loaded
        self.index: ModelIndex = loaded.index
        self.batches = batches
        self._interpreter: Interpreter | None = None
        self.ranges: dict[int, ValueRange] = {}
        self.plan: PrecisionPlan | None = None
        self.compared: Comparison | None = None

    def outcome(self) -> Outcome:
        """What a program is handed back from."""
        assert self.plan is not None
        kept = self.compared.kept_outputs if self.compared else []
        return Outcome(self.index, self.plan, self.request, kept[0] if kept else None)

    @property
    def interpreter(self) -> Interpreter:
        """Made when first needed: without samples nothing is run."""
        if self._interpreter is None:
            self._interpreter = self.run.interpreter(self.index)
        return self._interpreter

    def feeds(self) -> Iterator[Mapping[str, Any]]:
        assert self.batches is not None
        return (batch.feeds for batch in self.batches)

    def result(self, output: str | Path | None) -> Conversion:
        run, request = self.run, self.request
        if self.batches is not None:
            self.ranges = self._observe(self.batches)
        with run.stage("decide"):
            target = target_kernels(request.target)
            has_kernel = target.runs if target else None
            context = Context(
                self.index, request, self.ranges, measure_constant, survey_constants, has_kernel, self.mix
            )
            plan = decide(context)
            exact = exact_nodes(context)
            expected = expected_errors(self.index, planned_formats(self.index, plan), exact)
            limits = self._limits(expected)
        proof: Proof | None = None
        if self.batches is not None and request.validate:
            proof = self._prove(context, plan, limits)
            plan = proof.plan
        compared = proof.compared if proof else None
        self.plan, self.compared = plan, compared
        verdict, outputs = self._judge(plan, compared, limits, expected)
        with run.stage("build"):
            layers = self._layers(plan, compared, exact)
            flops = node_flops(self.index, self.ranges)
        nonfinite = list(self._reference_findings())
        given_interface = interface(self.index.model)
        external = any(True for v in self.index.model.graph.initializers.values() if _is_external(v.const_value))
        changed = {self.index.name_of(v) for v in self.index.constants}
        with run.stage("rewrite"):
            rewritten = rewrite(self.index, plan, request.io_types == "narrow")
            written = self._recheck(rewritten, plan, given_interface)
            changed -= {v.name or "" for v in rewritten.model.graph.initializers.values() if _still_wide(v)}
            if compared is not None:
                self._verify(written, compared)
            saved = self._save(rewritten, output, external, changed) if output else None
        provider = self._run_on_provider(rewritten, saved, compared, limits)
        verdict = judge_provider(verdict, provider.reasons)
        ran = self._interpreter.findings if self._interpreter else []
        parts = Parts(
            self.index, self.loaded.facts, plan, self.ranges, verdict, outputs, layers, flops, rewritten, saved, proof,
            provider, [*nonfinite, *ran],
        )  # fmt: skip
        report = assemble(run, parts)
        return Conversion(None if saved else rewritten.model, report, saved.files if saved else ())

    def _observe(self, batches: Batches) -> dict[int, ValueRange]:
        seen = 0
        with self.run.stage("observe", len(batches)) as done:

            def count(batch: int) -> None:
                nonlocal seen
                seen = batch
                done(batch)

            ranges = observe(self.interpreter, batches, count, self.request.observe_until_stable)
        if seen < len(batches):
            text = f"ranges are those of the first {seen} of {len(batches)} batches: the last {PATIENCE} widened none"
            self.run.findings.append(Finding("observed-part", self.loaded.facts.name, text))
        return ranges

    def _limits(self, expected: Mapping[int, float]) -> Mapping[str, OutputTolerance]:
        """The limits of each output; the rounding model speaks of the first plan, whatever repair makes of it."""
        tolerance = self.request.tolerance
        assert tolerance is not None
        graph = self.index.model.graph
        return {
            v.name or "": allowed_for(v.name or "", expected.get(self.index.id_of(v)), tolerance, self.request)
            for v in graph.outputs
        }

    def _prove(self, context: Context, plan: PrecisionPlan, limits: Mapping[str, OutputTolerance]) -> Proof:
        assert self.batches is not None
        run = self.run
        prover = Prover(
            context, self.interpreter, self.feeds, len(self.batches), limits, run.checked_batches, run.stage
        )
        return prover.prove(plan)

    def _judge(
        self,
        plan: PrecisionPlan,
        compared: Comparison | None,
        limits: Mapping[str, OutputTolerance],
        expected: Mapping[int, float],
    ) -> tuple[Verdict, tuple[OutputComparison, ...]]:
        if compared is None:
            return Verdict("unchecked"), ()
        with self.run.stage("judge"):
            outputs = output_rows(self.index, plan, compared, limits, expected)
            return judge(outputs, compared.failures), outputs

    def _layers(self, plan: PrecisionPlan, compared: Comparison | None, exact: frozenset[int]) -> Any:
        spec = planned_formats(self.index, plan)
        if compared is None:
            expected = expected_errors(self.index, spec, exact)
        else:
            expected = explained_errors(self.index, spec, exact, compared.accumulated)
        evidence = build.LayerEvidence(
            accumulated=compared.accumulated if compared else {},
            local=compared.local if compared else {},
            ranges=self.ranges,
            shapes=compared.shapes if compared else {},
            expected=expected,
        )
        return build.layer_rows(self.index, plan, evidence)

    def _recheck(self, rewritten: Rewritten, plan: PrecisionPlan, given: Any) -> ModelIndex:
        """Type the rewritten graph from scratch and check it against every schema."""
        model = rewritten.model
        propagate_types(model, self.index.catalog)
        written = index_model(model, self.index.catalog)
        wanted = given
        if self.request.io_types == "narrow":
            wanted = narrowed(given, NARROW_FORMATS[plan.to].type_string)
        check_types(written, wanted)
        self._ask_checker(model)
        self._try_loading(model)
        return written

    def _try_loading(self, model: ir.Model) -> None:
        """FP16 models load in ONNX Runtime with its optimiser on; its CPU provider runs no BF16."""
        if self.request.to != "fp16":
            return
        threads = self.run.threads
        problem = loading_problem(model, threads)
        if problem is not None and loading_problem(self.reload().index.model, threads) is None:
            raise DoesNotLoad(problem)

    def tell_coarser(self, problem: Exception) -> None:
        """Say that a coarser mix was chosen, and what the finer one ran into."""
        text = f"{self.mix}: ONNX Runtime's optimiser cannot load the first mix ({problem})"
        self.run.findings.append(Finding("coarser", self.loaded.facts.name, text))

    def _ask_checker(self, model: ir.Model) -> None:
        """The result passes ONNX's own checker in full, unless the given model did not either."""
        problem = checker_problem(model)
        if problem is None:
            return
        forget_inner_shapes(model)
        again = checker_problem(model)
        if again is None:
            text = f"shapes stated for inner values contradict inference and were dropped ({problem})"
            self.run.findings.append(Finding("stale", self.loaded.facts.name, text))
            return
        given = checker_problem(self.reload().index.model)
        if given is None:
            raise InternalError(f"the rewritten model fails onnx.checker: {again}; this is a bug in narrowcast")
        text = f"the given model fails onnx.checker itself: {given}"
        self.run.findings.append(Finding("given-invalid", self.loaded.facts.name, text))

    def _verify(self, written: ModelIndex, compared: Comparison) -> None:
        """Run the rewritten graph on the first batches: it must give the bits the plan promised."""
        self.interpreter.constants.forget()
        interpreter = self.run.interpreter(written)
        spec: FormatSpec = declared_formats(written)
        for feeds, promised in zip(self.feeds(), compared.kept_outputs, strict=False):
            if promised is None:
                continue
            got = interpreter.run(feeds, [spec]).outputs[0]
            assert got is not None
            for name, expected in promised.items():
                if not same_bits(expected, got[name]):
                    raise InternalError(
                        f"output '{name}' of the rewritten model differs from its plan's; this is a bug in narrowcast"
                    )

    def _run_on_provider(
        self,
        rewritten: Rewritten,
        saved: SavedModel | None,
        compared: Comparison | None,
        limits: Mapping[str, OutputTolerance],
    ) -> ProviderFigures:
        """Run the written model whole on the provider that was asked for, against the FP32 outputs."""
        name = chosen_provider(self.request.provider)
        if name is None or compared is None:
            return ProviderFigures()
        model = saved.files[0] if saved else ir.to_proto(rewritten.model).SerializeToString()
        with self.run.stage("compare"):
            figures, latency = measure_on_provider(model, name, self.feeds(), compared.references, limits)
        if latency is not None:
            self.run.timings[f"one inference on {name}"] = latency
        return figures

    def _save(self, rewritten: Rewritten, output: str | Path, external: bool, changed: set[str]) -> SavedModel:
        def make_caster(fmt: FloatFormat, source: Any, target: Any) -> CastInto:
            assert fmt.onnx_type is not None
            return CastInto(fmt.onnx_type, source, target, self.run.threads)

        weights = WeightStream(make_caster, lambda done, total: self.run.progress("rewrite", done, total))
        return save(rewritten.model, output, external, self.loaded.training, changed, weights)

    def _reference_findings(self) -> Iterator[Finding]:
        """Values that are NaN or infinite in FP32 already."""
        for value_id, seen in self.ranges.items():
            if seen.nonfinite and self.index.producer[value_id] >= 0:
                name = self.index.name_of(value_id)
                infinite = seen.posinf_count + seen.neginf_count
                text = f"value '{name}' holds {seen.nan_count} NaN and {infinite} infinite elements in FP32 already"
                yield Finding("reference-nonfinite", name, text)
        for value in self.index.model.graph.outputs:
            held = self.ranges.get(self.index.id_of(value))
            if held is not None and held.count == held.nonfinite:
                what = "is empty" if held.count == 0 else "holds no finite element"
                text = f"output '{value.name}' {what} on every batch, so nothing is known about its error; add a batch"
                yield Finding("nothing-measured", value.name or "", text)


def same_bits(expected: Any, got: Any) -> bool:
    """Equality bit for bit, NaN payloads aside."""
    if isinstance(expected, list):
        return isinstance(got, list) and len(got) == len(expected) and all(map(same_bits, expected, got))
    if isinstance(expected, np.ndarray):
        if not isinstance(got, np.ndarray) or expected.shape != got.shape:
            return False
        return expected.dtype == got.dtype and not differing(expected, got)
    return True


def exact_nodes(context: Context) -> frozenset[int]:
    """Nodes whose operator never rounds."""
    rows = ((n, context.row(n)) for n in range(len(context.index.nodes)))
    return frozenset(n for n, row in rows if row is not None and row.op_class is OpClass.EXACT)


def _is_external(tensor: Any) -> bool:
    return type(tensor).__name__ == "ExternalTensor"


def _still_wide(value: Any) -> bool:
    return value.const_value is not None and value.const_value.dtype.name == "FLOAT"
