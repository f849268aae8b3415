"""The command line that makes a report again."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from converter.report.json_view import report_object
from converter.report.reproduce import command_line, policy_lines
from converter.types import ConversionRequest, EmulationProfile, PolicyOverride
from tests.report import examples


def said(batches=1, name="model.onnx", **request):
    report = examples.passing()
    model = replace(report.model, name=name)
    return report_object(replace(report, model=model, batches=batches, request=ConversionRequest(**request)))


def test_defaults_are_left_out():
    assert command_line(said()) == "narrowcast convert model.onnx --samples BATCH.npz --to fp16"


def test_batches_are_numbered():
    assert "--samples BATCH1.npz --samples BATCH2.npz --to" in command_line(said(batches=2))
    assert "--samples" not in command_line(said(batches=0, validate=False))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"to": "bf16"}, "--to bf16"),
        ({"io_types": "narrow"}, "--io-types narrow"),
        ({"overflow": "widen"}, "--overflow widen"),
        ({"optimise": "speed"}, "--optimise speed"),
        ({"max_rel_l2": 0.00123456789}, "--max-rel-l2 0.00123456789"),
        ({"min_sqnr_db": 50.0}, "--min-sqnr-db 50.0"),
        ({"target": "cuda"}, "--target cuda"),
        ({"provider": "cuda"}, "--provider cuda"),
        ({"metrics": "all"}, "--metrics all"),
        ({"seed": 3}, "--seed 3"),
        ({"search": True}, "--search"),
        ({"repair": False}, "--no-repair"),
        ({"validate": False}, "--no-validate"),
        ({"dynamic": ("ids:1", "mask:1")}, "--dynamic ids:1 --dynamic mask:1"),
        ({"profile": EmulationProfile("ascend")}, "--emulate ascend"),
        ({"tolerance": replace(examples.TOLERANCE, name="strict")}, "--tolerance strict"),
        ({"overrides": (PolicyOverride(op_type="Softmax", origin="Softmax"),)}, "--keep-fp32 Softmax"),
        ({"overrides": (PolicyOverride("fp16", node="a*", origin="a*"),)}, "--policy POLICY.json"),
    ],
)
def test_every_option_is_said(request_, words):
    line = command_line(said(**request_))
    assert line.endswith(words) or f" {words} " in line


def test_the_default_tolerance_of_the_format_is_left_out():
    assert "--tolerance" not in command_line(said(tolerance=examples.TOLERANCE))
    assert "--tolerance fp16-default" in command_line(said(to="bf16", tolerance=examples.TOLERANCE))


@pytest.mark.parametrize("path", ["/home/me/secret/m.onnx", "C:\\Users\\me\\m.onnx", "rel/m.onnx"])
def test_no_path_survives(path):
    assert command_line(said(name=path)).startswith("narrowcast convert m.onnx ")


def test_a_nameless_model_gets_a_stand_in():
    assert command_line(said(name="")).startswith("narrowcast convert MODEL.onnx ")


def test_hostile_names_stay_one_word_each(hostile):
    words = shlex.split(command_line(hostile))
    assert words[2] == "script><img src=x onerror=\"document.title='owned'\">"
    assert words.count("--keep-fp32") == sum(bool(name) for name in examples.HOSTILE)
    assert all(word.isprintable() for word in words)


def test_policy_lines_hold_what_keep_fp32_cannot_say():
    overrides = (PolicyOverride(op_type="Add", origin="Add"), PolicyOverride("bf16", node="a", feeds="Exp", origin="x"))
    assert policy_lines(said(overrides=overrides)) == ['{"format": "bf16", "node": "a", "feeds": "Exp"}']
