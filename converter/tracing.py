"""PyTorch programs in front of the straight line: traced to ONNX, checked, and taken on from there.

A file or folder is loaded and traced in a child process of its own; a module that the caller holds is traced where it
is.  Either way a private folder then holds the ONNX model, the batches under its names, and what PyTorch returned.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from converter.compare.outputs import OutputRecord, compare_outputs
from converter.errors import ModelError, OptionError, RunCrashed
from converter.formats import FP32
from converter.graph import ModelIndex
from converter.isolation import run_isolated
from converter.operators import OperatorCatalog
from converter.program_facts import ProgramFacts, ProgramOutput, facts_from
from converter.ranges.batches import Batches, Source, expand_sources, flat_sample, read_source
from converter.runtime.formatting import declared_formats
from converter.runtime.interpreter import Interpreter
from converter.source.detect import SourceKind, kind_of
from converter.source.npz import write_npz
from converter.source.onnx_file import LoadedModel, load
from converter.source.torch_program import require_torch
from converter.types import ConversionRequest, Finding

TRACE_TOLERANCE = 1e-4
"""Largest relative L2 error of the FP32 ONNX model against the program: sums in another order stay two digits below."""

MODEL, BATCHES, EXPECTED = "model.onnx", "batches", "expected"


_OWN_FORMATS = {
    ir.DataType.FLOAT16: "FP16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.DOUBLE: "FP64",
}


class TraceMismatch(ModelError):
    """The traced ONNX model does not compute what the program computes."""

    code = "TRACE_MISMATCH"


class TraceFolder:
    """A private folder that goes when the last one who needs it lets go."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="narrowcast-trace-"))
        self._end = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass
class Opened:
    """A model to go on with: ``source`` and ``samples`` are what was given, or what tracing made of it.

    ``folder`` holds the trace and goes with this object; ``facts`` is None for a model that was ONNX already.
    """

    source: str | Path | onnx.ModelProto
    samples: Sequence[Source] | Source | None
    facts: ProgramFacts | None = None
    name: str = ""
    sha256: str = ""
    bytes: int = 0
    folder: TraceFolder | None = None

    def load(self, catalog: OperatorCatalog) -> LoadedModel:
        """Read the ONNX model; a program's report names the program's file."""
        loaded = load(self.source, catalog)
        if self.facts is not None:
            known = replace(loaded.facts, name=self.name)
            if self.sha256:
                known = replace(known, sha256=self.sha256, bytes=self.bytes)
            loaded.facts = known
        return loaded

    def findings(self) -> list[Finding]:
        """What a reader has to know about the trace."""
        return [Finding(f"trace-{kind}", self.name, text) for kind, text in (self.facts.notes if self.facts else ())]

    def expected(self, number: int) -> dict[str, Any]:
        """What PyTorch returned for a batch, by output name."""
        assert self.folder is not None
        with np.load(self.folder.path / EXPECTED / f"{number}.npz", allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def open_model(
    model: Any,
    samples: Sequence[Source] | Source | None,
    request: ConversionRequest,
    hand_back: bool,
    threads: int,
    timings: dict[str, float] | None = None,
) -> Opened:
    """Take an ONNX model as it is and trace anything else; ``timings`` gets the seconds that takes.

    Raises:
        InputError: the model is refused, a batch does not fit the program, or PyTorch cannot export it.
        EnvironmentFailure: PyTorch is not installed, or the process that traces died.
    """
    if isinstance(model, onnx.ModelProto):
        return Opened(model, samples)
    kind = kind_of(Path(model)) if isinstance(model, str | Path) else None
    if kind is SourceKind.ONNX:
        return Opened(model, samples)
    started = time.perf_counter()
    if kind is None:
        opened = _trace_object(model, samples, request, hand_back)
    else:
        opened = _trace_file(Path(model), kind, samples, request, hand_back, threads)
    if timings is not None:
        timings["trace"] = time.perf_counter() - started
    return opened


def _needed(samples: Sequence[Source] | Source | None) -> list[Source]:
    if samples is None:
        raise OptionError(
            "a PyTorch program is traced on a sample batch, also with --no-validate: pass --samples FILE.npz"
        )
    single = isinstance(samples, str | Path | Mapping)
    return expand_sources([samples] if single else list(samples))  # type: ignore[list-item, arg-type]


def _made(folder: TraceFolder, facts: ProgramFacts, name: str) -> Opened:
    root = folder.path
    batches = [next((root / BATCHES / str(k)).iterdir()) for k in range(len(list((root / BATCHES).iterdir())))]
    return Opened(root / MODEL, batches, facts, name, folder=folder)


# ------------------------------------------------------------------------------------------------- files


def _trace_file(
    path: Path,
    kind: SourceKind,
    samples: Sequence[Source] | Source | None,
    request: ConversionRequest,
    hand_back: bool,
    threads: int,
) -> Opened:
    require_torch()
    sources = _needed(samples)
    folder = TraceFolder()
    stored = [
        str(Path(s).absolute()) if isinstance(s, str | Path) else _store(s, folder, k) for k, s in enumerate(sources)
    ]
    asked = {
        "verb": "trace",
        "model": str(path.absolute()),
        "kind": kind.name,
        "samples": stored,
        "folder": str(folder.path),
        "to": request.to,
        "dynamic": list(request.dynamic),
        "hand_back": hand_back,
        "threads": threads,
    }
    try:
        answer = run_isolated(asked)
    except RunCrashed as error:
        raise RunCrashed(
            f"the process that traces '{path.name}' died (signal {error.signal}) while {error.node or 'starting'}; the "
            "program crashes PyTorch, or it needs more memory than there is",
            node=error.node,
            signal=error.signal,
        ) from error
    opened = _made(folder, facts_from(answer["facts"]), path.name)
    opened.sha256, opened.bytes = _fingerprint(path)
    return opened


def _store(sample: Source, folder: TraceFolder, number: int) -> str:
    """A batch of arrays in memory as a file for the child."""
    assert isinstance(sample, Mapping)
    path = folder.path / f"batch {number}.npz"
    write_npz(path, flat_sample(sample))
    return str(path)


def _fingerprint(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a file, or of a folder's configuration and weights in the order of their names."""
    files = [path] if path.is_file() else sorted((path / "config.json", *path.glob("*.safetensors")))
    digest, size = hashlib.sha256(), 0
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(2**22):
                digest.update(piece)
                size += len(piece)
    return digest.hexdigest(), size


@dataclass(frozen=True, slots=True)
class FileSamples:
    """Batches read one at a time, again on each iteration."""

    sources: tuple[Source, ...]

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number, source in enumerate(self.sources):
            name = Path(source).name if isinstance(source, str | Path) else f"batch {number}"
            yield name, read_source(source, ["0"])


def run_trace(request: Mapping[str, Any], crumb: Callable[[str], None]) -> Mapping[str, Any]:
    """In the child: load and trace a program file."""
    import torch

    from converter.source.torch_program.load import load_program
    from converter.source.torch_program.trace import Order, trace

    torch.set_num_threads(int(request["threads"]))
    crumb("loading the program")
    program = load_program(Path(request["model"]), SourceKind[request["kind"]])
    crumb("tracing it to ONNX")
    order = Order(request["to"], tuple(request["dynamic"]), bool(request["hand_back"]))
    facts = trace(program, FileSamples(tuple(request["samples"])), Path(request["folder"]), order)
    return {"facts": asdict(facts)}


def run_hand_back(request: Mapping[str, Any], crumb: Callable[[str], None]) -> Mapping[str, Any]:
    """In the child: make the mixed program of a trace."""
    from converter.source.torch_program.mixed import Recipe, hand_back

    crumb("making the mixed program")
    said = request["recipe"]
    wanted = Recipe(
        to=said["to"],
        nodes=said["nodes"],
        clamps=said["clamps"],
        limits=said["limits"],
        narrow_inputs=frozenset(said["narrow_inputs"]),
        narrow_outputs=frozenset(said["narrow_outputs"]),
    )
    feeds = read_source(request["batch"], ["0"])
    return hand_back(Path(request["folder"]), request["program"], wanted, feeds, Path(request["target"]))


# ------------------------------------------------------------------------------------------------- objects


@dataclass(frozen=True, slots=True)
class _HeldSamples:
    """A caller's batches: mappings of arrays or tensors, nested as the program takes them, or files."""

    sources: tuple[Source, ...]

    def __iter__(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, sample in FileSamples(self.sources):
            yield name, flat_sample(sample)


def _trace_object(
    model: Any, samples: Sequence[Source] | Source | None, request: ConversionRequest, hand_back: bool
) -> Opened:
    torch = sys.modules.get("torch")  # an object of its classes exists only where it is imported
    if torch is None or not isinstance(model, torch.nn.Module | torch.export.ExportedProgram):
        raise ModelError(
            f"the model is a {type(model).__name__}; give a path, an onnx.ModelProto, a torch.nn.Module or a "
            "torch.export.ExportedProgram"
        )
    require_torch()
    from converter.source.torch_program.load import from_exported, from_module
    from converter.source.torch_program.trace import Order, trace

    program = from_module(model) if isinstance(model, torch.nn.Module) else from_exported(model)
    folder = TraceFolder()
    order = Order(request.to, request.dynamic, hand_back)
    facts = trace(program, _HeldSamples(tuple(_needed(samples))), folder.path, order)
    return _made(folder, facts, program.label)


# ------------------------------------------------------------------------------------------------- the check


def check_trace(opened: Opened, index: ModelIndex, interpreter: Interpreter, batches: Batches) -> ProgramFacts:
    """Compare the FP32 ONNX model with the program on every batch, before anything is cast.

    Raises:
        TraceMismatch: an output differs; the message has the numbers of every output.
    """
    assert opened.facts is not None
    records = {v.name or "": OutputRecord(v.name or "", FP32) for v in index.model.graph.outputs}
    for number, batch in enumerate(batches):
        got = interpreter.run(batch.feeds, [declared_formats(index)]).outputs[0]
        compare_outputs(records, opened.expected(number), got, number)
    _note_formats(opened, index)
    outputs = tuple(_traced(output, records[output.name]) for output in opened.facts.outputs)
    if any(_is_off(output, records[output.name]) for output in outputs):
        said = "; ".join(_told(output, records[output.name]) for output in outputs)
        raise TraceMismatch(
            f"the ONNX model that {opened.facts.exporter} made of '{opened.name}' does not compute what the program "
            f"computes, so nothing was cast: {said} (allowed {TRACE_TOLERANCE:g}, relative L2). This is a fault of the "
            "export: simplify that part of the program, or save it another way (torch.export.save, torch.jit.save)"
        )
    return replace(opened.facts, outputs=outputs, trace_tolerance=TRACE_TOLERANCE)


def _note_formats(opened: Opened, index: ModelIndex) -> None:
    """Tell when the program has formats of its own: its reference then holds their rounding."""
    assert opened.facts is not None
    made = (value for node in index.nodes for value in node.outputs)
    found = {_OWN_FORMATS[value.dtype] for value in made if value.dtype in _OWN_FORMATS}
    text = (
        f"the program itself computes in {' and '.join(sorted(found))} somewhere (autocast, .half(), .double()); these "
        "parts are left as they are, and the reference has their rounding"
    )
    if found and ("formats", text) not in opened.facts.notes:
        opened.facts = replace(opened.facts, notes=(*opened.facts.notes, ("formats", text)))


def _traced(output: ProgramOutput, record: OutputRecord) -> ProgramOutput:
    error = record.figures.rel_l2_error if record.figures else None
    return replace(output, trace_rel_l2=error, mismatches=record.mismatches)


def _is_off(output: ProgramOutput, record: OutputRecord) -> bool:
    figures = record.figures
    lost = figures is not None and (figures.misplaced_nonfinite or (output.trace_rel_l2 or 0.0) > TRACE_TOLERANCE)
    return bool(lost or output.mismatches)


def _told(output: ProgramOutput, record: OutputRecord) -> str:
    if record.problem:
        return f"output '{output.name}': {record.problem}"
    if output.trace_rel_l2 is None:
        return f"output '{output.name}': {output.mismatches} elements differ"
    misplaced = record.figures.misplaced_nonfinite if record.figures else 0
    extra = f", {misplaced} NaN or infinite elements misplaced" if misplaced else ""
    return f"output '{output.name}': {output.trace_rel_l2:.3g}{extra}"


def with_converted(opened: Opened, facts: ProgramFacts, first: Mapping[str, Any] | None) -> ProgramFacts:
    """The facts with the converted model's error against the program itself, on the first batch."""
    if first is None:
        return facts
    records = {name: OutputRecord(name, FP32) for name in first}
    compare_outputs(records, opened.expected(0), first, 0)
    outputs = []
    for output in facts.outputs:
        figures = records[output.name].figures
        outputs.append(replace(output, converted_rel_l2=figures.rel_l2_error if figures else None))
    return replace(facts, outputs=tuple(outputs))
