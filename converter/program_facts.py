"""What is known of a PyTorch program that was traced: how, with which names, and how well the trace fits.

Plain records, so that the process that traces can send them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """One argument of the program, or one leaf of a nested one.

    ``name`` is the input of the ONNX graph and the key in a batch, ``argument`` the way to it in Python
    (``state[0]``).  A number or boolean that the trace fixed has ``fixed`` and is no input of the graph.
    """

    name: str
    argument: str
    type: str
    shape: tuple[int | str, ...] = ()
    fixed: str = ""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """One tensor of the result: its name in the ONNX graph and the way to it in Python.

    ``trace_rel_l2`` is the error of the FP32 ONNX graph, ``converted_rel_l2`` that of the converted one (first
    batch), both against what PyTorch returned; ``mismatches`` counts differing integers and booleans of the trace.
    """

    name: str
    result: str
    trace_rel_l2: float | None = None
    converted_rel_l2: float | None = None
    mismatches: int = 0


@dataclass(frozen=True, slots=True)
class HandedBack:
    """A mixed ExportedProgram that was asked for: written, or refused with the reason.

    ``nodes`` counts operators that work on floats; of these ``narrow`` follow the plan's 16-bit nodes, ``partly``
    became several ONNX nodes of different formats and stay FP32, ``unmatched`` have no ONNX node and take the
    format of what they read.  ``outputs`` holds the relative L2 difference to the converted ONNX model.
    """

    status: str
    reason: str = ""
    name: str = ""
    sha256: str = ""
    nodes: int = 0
    narrow: int = 0
    partly: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    outputs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """A traced program.

    ``kind`` is ``TorchScript``, ``ExportedProgram``, ``nn.Module`` or ``Hugging Face folder``; ``exporter`` names the
    way to ONNX; ``mode`` says in which mode it was traced; ``dynamic`` lists the axes left open (``name:axis``);
    ``notes`` is what a reader has to know about the trace.
    """

    kind: str
    module: str
    exporter: str
    torch: str
    mode: str
    opset: int
    inputs: tuple[ProgramInput, ...] = ()
    outputs: tuple[ProgramOutput, ...] = ()
    dynamic: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    trace_tolerance: float | None = None
    handed_back: HandedBack | None = None


def facts_from(fields: Mapping[str, Any]) -> ProgramFacts:
    """The record that ``dataclasses.asdict`` and a round through JSON made of one."""
    found = dict(fields)
    found["inputs"] = tuple(ProgramInput(**{**i, "shape": tuple(i["shape"])}) for i in fields["inputs"])
    found["outputs"] = tuple(ProgramOutput(**o) for o in fields["outputs"])
    found["dynamic"] = tuple(fields["dynamic"])
    found["notes"] = tuple((kind, text) for kind, text in fields["notes"])
    found["handed_back"] = None
    return ProgramFacts(**found)
