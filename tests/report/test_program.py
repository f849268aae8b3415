"""What a report says about the PyTorch program a model was traced from."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from rich.console import Console

from converter.program_facts import HandedBack, ProgramFacts, ProgramInput, ProgramOutput, facts_from
from converter.report import digest, read_report, to_json, view
from converter.report.terminal_view import render
from tests.report import examples

FACTS = ProgramFacts(
    kind="ExportedProgram",
    module="Tagger",
    exporter="torch.onnx.export(dynamo=True)",
    torch="2.13.0",
    mode="eval mode",
    opset=20,
    inputs=(
        ProgramInput("frames", "frames", "float32", ("dynamic", 7, 12)),
        ProgramInput("state.0", "state[0]", "float32", (4, 2, 16)),
        ProgramInput("rate", "rate", "int", (), "16000"),
    ),
    outputs=(ProgramOutput("output.0", "result[0]", 1.3e-7, 4.0e-4), ProgramOutput("<b>", "result['<b>']")),
    dynamic=("frames:0",),
    notes=(("state", "it keeps state"),),
    trace_tolerance=1e-4,
)

WRITTEN = HandedBack(
    "written", "", "out.pt2", "ab" * 32, 9, 6, ("softmax (net.py:3)",), ("view",), (("output.0", 2e-4),)
)
REFUSED = HandedBack("refused", "result 'output.0' differs from the converted ONNX model's by inf")


def report_with(facts: ProgramFacts | None) -> dict[str, Any]:
    return read_report(to_json(replace(examples.passing(), program=facts)))


def test_json_carries_the_facts_and_leaves_notes_to_the_findings() -> None:
    program = report_with(replace(FACTS, handed_back=WRITTEN))["program"]
    assert "notes" not in program
    assert program["inputs"][0]["shape"] == ["dynamic", 7, 12]
    assert program["outputs"][0]["trace_rel_l2"] == 1.3e-7
    assert program["handed_back"]["outputs"] == [{"name": "output.0", "rel_l2": 2e-4}]
    assert report_with(None)["program"] is None


def test_an_infinite_difference_is_null_beside_its_name() -> None:
    lost = replace(REFUSED, outputs=(("output.0", float("inf")),))
    handed = report_with(replace(FACTS, handed_back=lost))["program"]["handed_back"]
    assert handed["outputs"] == [{"name": "output.0", "rel_l2": None, "rel_l2_nonfinite": "inf"}]


def test_facts_cross_a_process_border_as_json() -> None:
    again = facts_from(json.loads(json.dumps(asdict(FACTS))))
    assert again == FACTS


@pytest.mark.parametrize("handed", [None, WRITTEN, REFUSED])
def test_every_view_shows_the_program(handed: HandedBack | None) -> None:
    report = report_with(replace(FACTS, handed_back=handed))
    page = view(report, "html").decode()
    assert 'id="program"' in page
    assert "<b></bdi>" not in page
    console = Console(width=200, file=None, record=True)
    with console.capture() as shown:
        console.print(render(report))
    assert "traced from ExportedProgram by torch.onnx.export(dynamo=True)" in shown.get()
    assert "**Against the PyTorch program**" in view(report, "markdown").decode()


def test_sentences() -> None:
    facts = report_with(replace(FACTS, handed_back=WRITTEN))["program"]
    assert digest.trace_sentence(facts).startswith("the FP32 graph differs from PyTorch by at most 1.30e-7")
    assert digest.trace_sentence({**facts, "trace_tolerance": None}) == "not done"
    said = digest.handed_back_sentence(facts)
    assert said.startswith("out.pt2: 6 of 9 operators narrow; 1 operator stays FP32 (its ONNX nodes disagree)")
    assert "1 without ONNX node follow their inputs" in said
    refused = report_with(replace(FACTS, handed_back=REFUSED))["program"]
    assert digest.handed_back_sentence(refused).startswith("refused: result 'output.0' differs")
