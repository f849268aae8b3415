"""Tracing: from a program and sample batches to an ONNX file, the batches under its names, and what PyTorch returned.

Into the folder go ``model.onnx`` (weights beside it when they are large), ``batches/K/NAME.npz``, ``expected/K.npz``
and, where a mixed program will be handed back, ``program.pt2``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.export import ExportedProgram

from converter.errors import BatchError, OptionError
from converter.program_facts import ProgramFacts, ProgramInput, ProgramOutput
from converter.source.torch_program.arguments import Bound, Leaf, Sample, bind, leaves_of, parameters_of, results_of
from converter.source.torch_program.arrays import check_results, described, differ, save_arrays
from converter.source.torch_program.capture import capture, check_deterministic
from converter.source.torch_program.export import EXPORTER, opset_for, quiet, to_onnx
from converter.source.torch_program.exported import Slot, bind_program, kept_outputs, slots_of
from converter.source.torch_program.load import Program
from converter.source.torch_program.reasons import ExportFailed, reason
from converter.source.torch_program.scripted import export_script

MODEL, PROGRAM, BATCHES, EXPECTED = "model.onnx", "program.pt2", "batches", "expected"

KEEPS_STATE = (
    "state",
    "the program keeps state between calls; the ONNX model starts every run from the state it was saved with",
)


class Samples(Protocol):
    """Sample batches that can be read again and again, one at a time."""

    def __iter__(self) -> Iterator[tuple[str, Sample]]: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What the trace has to serve: the target format, axes to leave open, whether a program is handed back."""

    to: str
    dynamic: tuple[str, ...] = ()
    hand_back: bool = False


@dataclass
class _Trace:
    """Everything that is found on the way."""

    program: Program
    samples: Samples
    folder: Path
    order: Order
    notes: list[tuple[str, str]] = field(default_factory=list)
    slots: list[Slot] | None = None
    keeps_state: bool = False

    def __post_init__(self) -> None:
        self.notes += self.program.notes
        module = self.program.module
        self.parameters = None if module is None else parameters_of(module)
        self.names = None if self.parameters is None else [p.name for p in self.parameters]
        if self.program.exported is not None:
            self.slots = slots_of(self.program.exported)
            self.names = list(dict.fromkeys(slot.name.partition(".")[0] for slot in self.slots))
            self.runnable: Any = self.program.exported.module(check_guards=False)
        else:
            self.runnable = module

    def bound(self, name: str, sample: Sample) -> Bound:
        if self.slots is not None and self.program.exported is not None:
            return bind_program(self.program.exported, self.slots, sample, name)
        return bind(sample, self.parameters, name)

    def leaves(self, bound: Bound) -> list[Leaf]:
        return leaves_of(bound.args, bound.kwargs, self.names)

    def run(self, bound: Bound, batch: str) -> list[Leaf]:
        """What PyTorch returns; the program is as it was afterwards."""
        if self.keeps_state and self.program.reload is not None:
            again = self.program.reload()
            self.runnable = again.module or again.exported.module(check_guards=False)  # type: ignore[union-attr]
        given = bound.copied()
        try:
            with torch.no_grad(), quiet(), steady(self.runnable) as changed:
                result = self.runnable(*given.args, **given.kwargs)
        except Exception as error:
            raise BatchError(
                f"the program fails on batch '{batch}': {reason(error)}; it was called with "
                f"{described(self.leaves(bound))}"
            ) from error
        if changed and KEEPS_STATE not in self.notes:
            self.notes.append(KEEPS_STATE)
        self._note_writes(bound, given)
        return results_of(result, [leaf.name for leaf in self.leaves(bound)])

    def _note_writes(self, bound: Bound, given: Bound) -> None:
        """Tell once which arguments the program changes in place."""
        for before, after in zip(self.leaves(bound), self.leaves(given), strict=True):
            if isinstance(before.value, torch.Tensor) and not torch.equal(before.value, after.value):
                text = f"the program writes into its argument '{before.name}'"
                note = ("state", f"{text}; an ONNX model leaves its inputs as they are")
                if note not in self.notes and not before.value.isnan().any():
                    self.notes.append(note)


@contextlib.contextmanager
def steady(module: torch.nn.Module) -> Iterator[list[torch.Tensor]]:
    """Put back buffers that a call changes, and give them."""
    kept = [(b, b.detach().clone()) for b in module.buffers()]
    changed: list[torch.Tensor] = []
    try:
        yield changed
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                if buffer.layout == torch.strided and not torch.equal(buffer, value) and not value.isnan().any():
                    changed.append(buffer)
                buffer.copy_(value)


@contextlib.contextmanager
def eval_mode(program: Program) -> Iterator[None]:
    """A caller's module in eval mode, and afterwards as it was."""
    if program.module is None or program.mode:
        yield
        return
    training = [m for m in program.module.modules() if getattr(m, "training", False)]
    program.mode = f"eval mode, for the trace ({len(training)} modules were training)" if training else "eval mode"
    program.module.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def trace(program: Program, samples: Samples, folder: Path, order: Order) -> ProgramFacts:
    """Trace a program into ``folder``.

    Raises:
        BatchError: a batch does not fit the program's arguments; the message names the argument.
        ExportFailed: PyTorch cannot export it; its reason is quoted.
        OptionError: an axis that was asked for does not exist or cannot be left open.
    """
    with eval_mode(program), torch.autocast("cpu", enabled=False):
        return _trace(_Trace(program, samples, folder, order))


def _trace(run: _Trace) -> ProgramFacts:
    name, sample = next(iter(run.samples))
    bound = run.bound(name, sample)
    results = run.run(bound, name)
    check_results(results)
    _note_state(run, bound, name, results)
    axes = _axes(run)
    made = _export(run, bound, axes, results)
    inputs = [leaf.name for leaf in run.leaves(bound) if isinstance(leaf.value, torch.Tensor)]
    outputs = [leaf for leaf, kept in zip(results, made.kept, strict=True) if kept]
    fixed = _numbers(run, bound)
    for number, (name, sample) in enumerate(run.samples):
        _check_numbers(fixed, _numbers(run, run.bound(name, sample)), name)
        _write_batch(run, number, name, sample, inputs, outputs, made.kept)
    return ProgramFacts(
        kind=run.program.kind,
        module=run.program.label,
        exporter=made.exporter,
        torch=str(torch.__version__),
        mode=run.program.mode,
        opset=made.opset,
        inputs=tuple(_inputs(run, bound, made.axes)),
        outputs=tuple(ProgramOutput(leaf.name, leaf.path) for leaf in outputs),
        dynamic=tuple(f"{name}:{axis}" for name, sizes in made.axes.items() for axis in sorted(sizes)),
        notes=tuple(run.notes),
    )


def _note_state(run: _Trace, bound: Bound, name: str, results: list[Leaf]) -> None:
    """Find programs whose second call gives something else, and those that draw random numbers."""
    if not differ(results, run.run(bound, name)):
        return
    run.keeps_state = True
    if run.program.reload is None or differ(results, run.run(bound, name)):
        _blame_operator(run, bound)
        raise ExportFailed(
            f"two equal calls of the program give different results on batch '{name}': it draws random numbers or "
            "keeps state in attributes; take both as arguments and give the new state back as results"
        )
    if KEEPS_STATE not in run.notes:
        run.notes.append(KEEPS_STATE)


def _blame_operator(run: _Trace, bound: Bound) -> None:
    """Raise with the operator that draws random numbers, where an exported graph shows it."""
    exported = run.program.exported
    if exported is None and not isinstance(run.program.module, torch.jit.ScriptModule):
        assert run.program.module is not None
        with contextlib.suppress(ExportFailed):
            exported, _ = capture(run.program.module, bound.copied(), run.names, {})
    if exported is not None:
        check_deterministic(exported)


# ------------------------------------------------------------------------------------------------- axes


def _axes(run: _Trace) -> dict[str, dict[int, bool]]:
    """The axes to leave open: the batch, those in which the batches differ, and those asked for."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for name, sample in run.samples:
        for leaf in run.leaves(run.bound(name, sample)):
            if isinstance(leaf.value, torch.Tensor):
                shapes.setdefault(leaf.name, []).append(tuple(leaf.value.shape))
    found: dict[str, dict[int, bool]] = {}
    for name, seen in shapes.items():
        ranks = {len(shape) for shape in seen}
        if len(ranks) == 1 and ranks != {0}:
            differing = {a for a in range(min(ranks)) if len({shape[a] for shape in seen}) > 1}
            found[name] = dict.fromkeys(sorted({0} | differing), False)
    for wish in run.order.dynamic:
        name, axis = _wished(wish, shapes, run)
        found.setdefault(name, {})[axis] = True
    return found


def _wished(wish: str, shapes: Mapping[str, list[tuple[int, ...]]], run: _Trace) -> tuple[str, int]:
    name, _, number = wish.rpartition(":")
    if name not in shapes:
        raise OptionError(
            f"--dynamic {wish}: the program has no argument '{name}'; it takes {', '.join(map(repr, shapes))} "
            "(write NAME:AXIS)"
        )
    rank = len(shapes[name][0])
    if not number.isdecimal() or int(number) >= rank:
        raise OptionError(f"--dynamic {wish}: argument '{name}' has rank {rank}, so its axes are 0 to {rank - 1}")
    slot = next((s for s in run.slots or () if s.name == name), None)
    if slot is not None and isinstance(slot.shape[int(number)], int):
        raise OptionError(
            f"--dynamic {wish}: the program was exported with size {slot.shape[int(number)]} fixed there; export it "
            "again with dynamic_shapes"
        )
    return name, int(number)


# ------------------------------------------------------------------------------------------------- export


@dataclass
class _Made:
    """The written ONNX file; ``kept`` says which leaves of the result it has."""

    exporter: str
    opset: int
    kept: list[bool]
    axes: Mapping[str, Iterable[int]]


def _export(run: _Trace, bound: Bound, axes: dict[str, dict[int, bool]], results: list[Leaf]) -> _Made:
    program = run.program
    path = run.folder / MODEL
    exporter = EXPORTER
    if isinstance(program.module, torch.jit.ScriptModule):
        fresh = program.reload
        script = program.module
        found = export_script(
            (lambda: fresh().module) if fresh else (lambda: script),
            bound,
            run.names or [],
            axes,
            path,
            run.order.hand_back,
        )
        run.notes += found.notes
        if found.exported is None:
            return _Made(
                found.exporter, _opset_of(path), [isinstance(r.value, torch.Tensor) for r in results], found.axes
            )
        exporter, exported, axes = f"{found.exporter}, then {EXPORTER}", found.exported, {}
    elif program.module is not None:
        exported, closed = capture(program.module, bound.copied(), run.names, axes)
        if closed:
            run.notes.append(("axes", f"every axis is fixed to the first batch's size: {closed}"))
    else:
        assert program.exported is not None
        exported = program.exported
    return _translate(run, exporter, exported, axes, bound, results)


def _translate(
    run: _Trace,
    exporter: str,
    exported: ExportedProgram,
    axes: dict[str, dict[int, bool]],
    bound: Bound,
    results: list[Leaf],
) -> _Made:
    """An ExportedProgram to ONNX; a caller's axes that the export closed are told."""
    check_deterministic(exported)
    kept = kept_outputs(exported)
    if len(kept) != len(results):  # the recording gives tensors only
        kept = [isinstance(r.value, torch.Tensor) for r in results]
    leaves = [leaf for leaf in run.leaves(bound) if isinstance(leaf.value, torch.Tensor)]
    open_axes = _open_axes(exported, [leaf.name for leaf in leaves])
    closed = [f"'{name}'" for name in axes if 0 in axes[name] and 0 not in open_axes.get(name, ())]
    if closed and run.program.exported is None:
        text = "the program works for that size only, or ties it to an axis that is fixed (see --dynamic)"
        run.notes.append(("axes", f"axis 0 of {', '.join(closed)} is fixed: {text}"))
    opset = opset_for(exported, run.order.to)
    names = [leaf.name for leaf, keep in zip(results, kept, strict=True) if keep]
    decomposed = to_onnx(exported, opset, [leaf.name for leaf in leaves], names, run.folder / MODEL)
    if run.order.hand_back:
        with quiet():
            torch.export.save(decomposed, run.folder / PROGRAM)
    return _Made(exporter, opset, kept, open_axes)


def _open_axes(exported: ExportedProgram, names: Sequence[str]) -> dict[str, list[int]]:
    """Which axes of the tensors a program takes are open."""
    tensors = [slot for slot in slots_of(exported) if slot.dtype is not None]
    found = {}
    for name, slot in zip(names, tensors, strict=True):
        open_here = [axis for axis, size in enumerate(slot.shape) if not isinstance(size, int)]
        if open_here:
            found[name] = open_here
    return found


def _opset_of(path: Path) -> int:
    import onnx

    imports = onnx.load(path, load_external_data=False).opset_import
    return next(int(entry.version) for entry in imports if entry.domain in ("", "ai.onnx"))


# ------------------------------------------------------------------------------------------------- records


def _write_batch(
    run: _Trace,
    number: int,
    name: str,
    sample: Sample,
    inputs: Sequence[str],
    outputs: Sequence[Leaf],
    kept: list[bool],
) -> None:
    """One batch under the graph's names, and what PyTorch returns for it."""
    bound = run.bound(name, sample)
    tensors = {leaf.name: leaf.value for leaf in run.leaves(bound) if isinstance(leaf.value, torch.Tensor)}
    if list(tensors) != list(inputs):
        raise BatchError(
            f"batch '{name}' gives the arguments {', '.join(tensors)}, the first batch {', '.join(inputs)}; all "
            "batches must give the same"
        )
    results = run.run(bound, name)
    if len(results) != len(kept):
        raise BatchError(
            f"the program returns {len(results)} values on batch '{name}' and {len(kept)} on the first one"
        )
    made = [leaf for leaf, keep in zip(results, kept, strict=True) if keep]
    save_arrays(run.folder / BATCHES / str(number) / f"{Path(name).stem}.npz", tensors)
    save_arrays(
        run.folder / EXPECTED / f"{number}.npz", {o.name: leaf.value for o, leaf in zip(outputs, made, strict=True)}
    )


def _numbers(run: _Trace, bound: Bound) -> dict[str, Any]:
    """The arguments that are numbers: the trace has them as constants."""
    return {leaf.name: leaf.value for leaf in run.leaves(bound) if not isinstance(leaf.value, torch.Tensor)}


def _check_numbers(fixed: Mapping[str, Any], given: Mapping[str, Any], batch: str) -> None:
    for name in fixed.keys() & given.keys():
        if fixed[name] != given[name]:
            raise BatchError(
                f"argument '{name}' of batch '{batch}' is {given[name]}, and {fixed[name]} in the first batch; a "
                "number is fixed in the trace: give batches with one value, or make it a tensor in the program"
            )


def _inputs(run: _Trace, bound: Bound, axes: Mapping[str, Iterable[int]]) -> Iterator[ProgramInput]:
    for leaf in run.leaves(bound):
        if isinstance(leaf.value, torch.Tensor):
            free = set(axes.get(leaf.name, ()))
            shape = tuple("dynamic" if a in free else d for a, d in enumerate(leaf.value.shape))
            yield ProgramInput(leaf.name, leaf.path, str(leaf.value.dtype).removeprefix("torch."), shape)
        elif leaf.value is not None:
            yield ProgramInput(leaf.name, leaf.path, type(leaf.value).__name__, fixed=str(leaf.value))
