"""The evaluator: a model run node by node, several number formats in lock step.

ONNX Runtime's CPU provider computes FP16 in FP32 and has no BF16 arithmetic, so it cannot judge a mixed model.
Here each node runs in an FP32 session of its own; narrow values are held as float32 and rounded where the plan
(or the file) says they are stored narrow.  Streams differ only in their ``FormatSpec``; the first one is the
reference.  A stream that takes another branch, index or shape is a finding; a stream that cannot go on is
marked failed; neither stops the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from converter.errors import ModelError
from converter.formats import FloatFormat
from converter.graph import ModelIndex
from converter.numerics.background import Background
from converter.runtime import control_flow
from converter.runtime.formatting import ConstantStore, FormatSpec, Rounding
from converter.runtime.kernels import StepRunner
from converter.runtime.narrow_sums import EMULATORS
from converter.runtime.program import Program, Step, StepKind, compile_model
from converter.runtime.session import KernelCache, KernelFailure, KernelMissing, Threads
from converter.runtime.stream import Stream
from converter.runtime.structures import EMPTY, StructureFailure, run_structure
from converter.types import EmulationProfile, Finding


class Tap(Protocol):
    """What watches a run."""

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """A value was made (or a graph or body input set); one entry per stream, None where it did not run."""

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """A kernel step is about to run; its inputs can be read from the streams."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outputs of one batch per stream (None: that stream failed), by output name."""

    outputs: tuple[dict[str, Any] | None, ...]
    failures: tuple[tuple[str, str] | None, ...]


@dataclass
class Interpreter:
    """Evaluates one model; sessions are cached over runs, streams and plans.

    ``breadcrumb`` is told the label of each node before native code runs it.  ``strict``: the first stream is a
    reference whose failure ends the run; a candidate on its own may fail like any other stream.
    """

    index: ModelIndex
    threads: Threads = field(default_factory=Threads)
    profile: EmulationProfile = field(default_factory=EmulationProfile)
    seed: int = 0
    breadcrumb: Callable[[str], None] | None = None
    narrow_sums: frozenset[str] = frozenset()
    """Operators whose policy row says that hardware may keep their running total narrow."""
    findings: list[Finding] = field(default_factory=list)
    strict: bool = True
    kernels: KernelCache | None = None
    """Sessions shared with other interpreters of the same threads; its own when None."""

    def __post_init__(self) -> None:
        self.program: Program = compile_model(self.index)
        self.rounding = Rounding(self.profile, self.threads)
        self.background = Background(self.threads.count)
        self.constants = ConstantStore(self.index, self.rounding)
        self.runner = StepRunner(
            self.index, KernelCache(self.threads) if self.kernels is None else self.kernels, self.seed
        )
        self._taps: Sequence[Tap] = ()
        self._diverged: set[int] = set()
        self._calls: dict[int, int] = {}

    def run(self, feeds: Mapping[str, Any], specs: Sequence[FormatSpec], taps: Sequence[Tap] = ()) -> RunResult:
        """Run one batch through every stream.

        Raises:
            ModelError: the reference stream failed; the message names the node and quotes the runtime.
        """
        self._taps = taps
        self._calls.clear()
        streams = [Stream(k, spec, self.constants, self.rounding) for k, spec in enumerate(specs)]
        for value in self.index.model.graph.inputs:
            self._feed(self.index.id_of(value), feeds.get(value.name or ""), value.name in feeds, streams)
        self.run_scope(0, streams)
        outputs = tuple(None if s.failure else self._outputs(s) for s in streams)
        return RunResult(outputs, tuple(s.failure for s in streams))

    def _feed(self, value_id: int, given: Any, present: bool, streams: Sequence[Stream]) -> None:
        if not present:  # an overridable initializer keeps its default
            default = self.index.values[value_id].const_value
            if default is None:
                return
            given = default.numpy()
        if given is None:
            given = EMPTY
        if isinstance(given, np.ndarray) and self.index.is_float(value_id):
            given = given.astype(np.float32, copy=False)
        for stream in streams:
            stream.store_result(value_id, given)
        self.announce(value_id, streams)

    def _outputs(self, stream: Stream) -> dict[str, Any]:
        found = {}
        for position, value in enumerate(self.index.model.graph.outputs):
            result = self.leave(stream, 0, position)
            found[value.name or ""] = None if result is EMPTY else result
        return found

    # ------------------------------------------------------------------------------------------- scopes

    def run_scope(self, scope_id: int, streams: Sequence[Stream]) -> None:
        """Run all steps of a scope for streams whose inputs of it are set."""
        alive = [s for s in streams if s.failure is None]
        for step in self.program.scopes[scope_id]:
            if not alive:
                return
            self._run_step(step, alive)
            if any(s.failure is not None for s in alive):
                alive = [s for s in alive if s.failure is None]
            for value_id in step.made:
                self.announce(value_id, alive)
            if step.frees:
                for stream in streams:
                    stream.free(step.frees)
            self.constants.give_back()

    def leave(self, stream: Stream, scope_id: int, position: int) -> Any:
        """A scope's output as it is handed to the owner."""
        value_id = self.index.id_of(self.index.scopes[scope_id].graph.outputs[position])
        return stream.load_as(value_id, stream.spec.leaves.get((scope_id, position)))

    def free_scope(self, scope_id: int, streams: Sequence[Stream]) -> None:
        """Forget what a body still holds after its outputs were taken."""
        owned = tuple(self.program.owned[scope_id])
        for stream in streams:
            stream.free(owned)

    def announce(self, value_id: int, streams: Sequence[Stream]) -> None:
        """Tell the taps that a value exists."""
        if not self._taps:
            return
        values: list[Any] = [None] * (1 + max((s.position for s in streams), default=0))
        for stream in streams:
            values[stream.position] = stream.load(value_id)
        for tap in self._taps:
            tap.value(value_id, values)

    def diverge(self, step: Step, message: str) -> None:
        """Record that streams went different ways at a node, once per node."""
        if step.node_id not in self._diverged:
            self._diverged.add(step.node_id)
            self.findings.append(Finding("diverged", step.label, message))

    # -------------------------------------------------------------------------------------------- steps

    def _run_step(self, step: Step, streams: Sequence[Stream]) -> None:
        if self.breadcrumb is not None:
            self.breadcrumb(step.label)
        if step.walked:
            self.guarded(step, streams, lambda: control_flow.RUNNERS[step.kind](self, step, streams))
            return
        for tap in self._taps:
            tap.step(self, step, streams)
        self._run_plain(step, streams)

    def _run_plain(self, step: Step, streams: Sequence[Stream]) -> None:
        first_feeds: list[Any] | None = None
        first_results: list[Any] = []
        call = self._calls[step.node_id] = self._calls.get(step.node_id, -1) + 1
        for stream in streams:
            feeds = self.gather(stream, step)
            narrow = stream.spec.stored[step.made[0]] if step.made else None
            shareable = narrow is None or not self.sums_narrow(step)
            if first_feeds is not None and shareable and _shareable(step, feeds, first_feeds):
                results = first_results
            else:
                try:
                    results = self.execute(step, feeds, call, narrow)
                except (KernelFailure, StructureFailure) as error:
                    self._failed(step, [stream], error)
                    continue
                if first_feeds is None:
                    first_feeds, first_results = feeds, results
            for value_id, result in zip(step.made, results, strict=True):
                stream.store_result(value_id, result)

    def gather(self, stream: Stream, step: Step) -> list[Any]:
        """The present inputs of a node as its ports read them in a stream."""
        reads = stream.spec.reads.get(step.node_id)
        if reads is None:
            feeds = [stream.load(v) for v in step.present]
        else:
            feeds = [stream.load_as(v, reads[k]) for k, v in enumerate(step.inputs) if v >= 0]
        return feeds + [stream.load(v) for v in step.captured] if step.captured else feeds

    def execute(self, step: Step, feeds: Sequence[Any], call: int = 0, narrow: FloatFormat | None = None) -> list[Any]:
        """Run a node that is no control flow; results in order of its present outputs, not yet rounded.

        ``narrow`` is the format the result will be stored in: casts then round once, and under a profile that
        sums narrow so do the operators that hardware may sum so.
        """
        if step.kind is StepKind.STRUCTURE:
            return [run_structure(step.op_type, feeds)]
        if narrow is not None and self.sums_narrow(step):
            return [EMULATORS[step.op_type](step, feeds, narrow, self.profile)]
        return self.runner.run(step, feeds, call, narrow is not None)

    def sums_narrow(self, step: Step) -> bool:
        """Whether the profile wants a node's running total in the narrow format."""
        if not self.profile.narrow_accumulate or step.node.domain or step.op_type not in EMULATORS:
            return False
        return step.op_type in self.narrow_sums

    def guarded(self, step: Step, streams: Sequence[Stream], action: Callable[[], Any]) -> Any:
        """Run an action; its failure ends the run for the reference and the stream for any other."""
        try:
            return action()
        except (KernelFailure, StructureFailure) as error:
            self._failed(step, streams, error)
            return None

    def _failed(self, step: Step, streams: Sequence[Stream], error: Exception) -> None:
        if isinstance(error, KernelMissing):
            raise ModelError(
                f"node '{step.label}' ({step.op_type}): ONNX Runtime's CPU provider cannot run it ({error}), so the "
                "model cannot be compared; use --no-validate to convert without running it"
            ) from error
        if self.strict and any(s.position == 0 for s in streams):
            raise ModelError(
                f"node '{step.label}' ({step.op_type}) fails in FP32 on this batch: {error}; "
                "check that the batch fits the model"
            ) from error
        for stream in streams:
            stream.failure = (step.label, str(error))


def _shareable(step: Step, feeds: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether a stream may take the reference's results: random draws, and nodes with the very same inputs."""
    if step.kind is StepKind.RANDOM:
        return True
    return step.kind is not StepKind.CAST and all(a is b for a, b in zip(feeds, others, strict=True))
