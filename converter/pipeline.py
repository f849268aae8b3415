"""The straight line: load, observe, decide, rewrite, compare, judge, build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from converter.compare.tolerances import named_tolerance
from converter.conversion import DoesNotLoad, Stages
from converter.errors import InternalError, OptionError
from converter.formats import FP32, NARROW_FORMATS
from converter.handing_back import HandBack, check_asked, conclude
from converter.opset import raise_if_needed
from converter.policy.context import Mix
from converter.policy.legality import has_cast
from converter.program_facts import ProgramFacts
from converter.ranges.batches import Batches, Source
from converter.request import check_request
from converter.run import Progress, Run, catalog, listed, quiet
from converter.runtime.providers import chosen_provider
from converter.runtime.session import Threads
from converter.source.onnx_file import LoadedModel
from converter.tracing import Opened, check_trace, open_model
from converter.types import (
    Conversion,
    ConversionRequest,
    OpClass,
)


def convert(
    model: str | Path | onnx.ModelProto | Any,
    samples: Sequence[Source] | Source | None = None,
    request: ConversionRequest | None = None,
    *,
    output: str | Path | None = None,
    progress: Progress = quiet,
    threads: Threads | None = None,
    breadcrumb: Callable[[str], None] | None = None,
    checked_batches: int = 1,
    **options: Any,
) -> Conversion:
    """Convert an FP32 model to mixed FP16/BF16 and prove it on sample batches.

    ``model`` is an ONNX file or proto, a PyTorch program (TorchScript, ``.pt2``, a Hugging Face folder: traced in a
    process of its own), or a ``torch.nn.Module`` or ``ExportedProgram`` (traced here).  ``options`` are fields of
    ``ConversionRequest`` (``to="bf16"``, ``overflow="widen"`` ...).  With ``output`` the model is written there
    (external data beside it when the given model had some) and ``Conversion.model`` is None; without it the mixed
    ``onnx_ir.Model`` is returned.  An ``output`` that ends in ``.pt2`` asks for a mixed ExportedProgram too, beside
    the ONNX model of the same name.  On the first ``checked_batches`` batches the rewritten graph itself is run too
    and must give the same bits as the plan that was compared.

    Raises:
        InputError: the model, a batch or an option is wrong; the message names the culprit.
        InternalError: narrowcast broke a promise of its own.
    """
    request = replace(request or ConversionRequest(), **options)
    check_request(request, samples is not None)
    request = replace(request, tolerance=request.tolerance or named_tolerance(None, request.to))
    chosen_provider(request.provider)
    run = Run(request, progress, threads or Threads(), breadcrumb, checked_batches)
    handing = HandBack.asked(output)
    with run.stage("load"):
        opened = open_model(model, samples, request, handing is not None, run.threads.count, run.timings)
        check_asked(handing, opened)
    problem: DoesNotLoad | None = None
    for mix in MIXES:
        run.findings.clear()
        with run.stage("load"):
            given = _load_raised(run, opened)
        stages = Stages(run, given.loaded, given.batches, lambda: opened.load(catalog()), mix)
        if problem is not None:
            stages.tell_coarser(problem)
        try:
            done = stages.result(handing.onnx if handing else output)
        except DoesNotLoad as error:
            problem = error
            continue
        return conclude(opened, given.program, done, handing, stages.outcome())
    raise _never_loads(request, problem)


MIXES: tuple[Mix, ...] = (
    Mix(),
    Mix(narrow_scales=True),
    Mix(frozenset((OpClass.FOLLOW,))),
    Mix(frozenset((OpClass.FOLLOW, OpClass.EXACT))),
    Mix(frozenset((OpClass.FOLLOW, OpClass.EXACT, OpClass.NARROW))),
)
"""Tried in turn until ONNX Runtime's optimiser can load the result; the first nearly always does, the last must."""


def _never_loads(request: ConversionRequest, problem: Exception | None) -> Exception:
    """Whose fault it is that no mix loads: the user's who forced one, or ours."""
    said = (o.origin or str(o.node or o.op_type) for o in request.overrides if o.format != FP32.name)
    forced = ", ".join(dict.fromkeys(said))
    if forced:
        return OptionError(
            f"ONNX Runtime cannot load the model with what {forced} narrows: {problem}; let the policy decide there"
        )
    return InternalError(f"ONNX Runtime does not load the rewritten model: {problem}; this is a bug in narrowcast")


@dataclass(frozen=True)
class _Given:
    """The model to convert, its batches, and what is known of the program it came from."""

    loaded: LoadedModel
    batches: Batches | None
    program: ProgramFacts | None


def _load_raised(run: Run, opened: Opened) -> _Given:
    """The model, its operator set raised where BF16 needs it, and the batches; a trace is checked on them."""
    known = catalog()
    loaded = opened.load(known)
    batches = None if opened.samples is None else Batches(listed(opened.samples), loaded.index)
    program = opened.facts
    if program is not None and batches is not None:
        program = check_trace(opened, loaded.index, run.interpreter(loaded.index), batches)
    raised = raise_if_needed(
        loaded,
        lambda: opened.load(known),
        run.request.to,
        None if batches is None else lambda: (batch.feeds for batch in batches),
        run.interpreter,
    )
    fmt = NARROW_FORMATS[run.request.to]
    if run.request.io_types == "narrow" and not has_cast(raised.loaded.index, fmt):
        raise OptionError(
            f"opset {raised.loaded.index.opset} knows no Cast to {fmt.label}, so inputs and outputs cannot be that; "
            "leave out --io-types narrow, or export the model with opset 13 or newer"
        )
    run.findings += [*opened.findings(), *raised.loaded.findings, *raised.findings]
    return _Given(raised.loaded, batches, program)
