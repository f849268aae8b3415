"""JUnit XML agrees with the verdict and with the exit status."""

from __future__ import annotations

import copy
import xml.etree.ElementTree as ET

import pytest

from converter.report.junit_view import to_junit


def suite(report):
    return ET.fromstring(to_junit(report)).find("testsuite")


def cases(report):
    return {(case.get("classname"), case.get("name")): case for case in suite(report)}


@pytest.mark.parametrize("name", ["passing", "failing", "empty"])
def test_golden(name, golden, request):
    golden(f"{name}.xml", to_junit(request.getfixturevalue(name)))


def test_a_pass_has_no_failure(passing):
    found = suite(passing)
    assert (found.get("tests"), found.get("failures"), found.get("skipped")) == ("4", "0", "0")
    assert found.get("name") == "narrowcast encoder.onnx fp16"
    assert found.get("time") == "4.910"


def test_a_fail_fails_exactly_where_limits_were_broken(failing):
    failed = [name for name, case in cases(failing).items() if case.find("failure") is not None]
    assert failed == [
        ("narrowcast.verdict", "verdict"),
        ("narrowcast.outputs", "/encoder/layer.0/norm/LayerNormalization_output_0"),
        ("narrowcast.layers", "/encoder/layer.0/ffn/Pow"),
    ]
    assert suite(failing).get("failures") == "3"


def test_a_failure_carries_every_message(failing):
    failure = cases(failing)["narrowcast.outputs", "/encoder/layer.0/norm/LayerNormalization_output_0"].find("failure")
    assert failure.get("message").startswith(
        "output /encoder/layer.0/norm/LayerNormalization_output_0 has a relative L2"
    )
    assert failure.text.splitlines()[1] == "nonfinite is nan, allowed –"


def test_an_abnormal_layer_within_limits_is_skipped_with_its_cause(failing):
    case = cases(failing)["narrowcast.layers", "/encoder/layer.0/ffn/Tanh"]
    assert case.find("skipped").get("message") == (
        "abnormal, no limit broken: 48 elements are NaN or infinite on one side only"
    )


def test_a_layer_over_a_limit_is_found_by_its_value_too(passing):
    report = copy.deepcopy(passing)
    reason = {"limit": "max_abs", "value": 2.0, "allowed": 1.0, "layer": report["layers"][2]["value"], "message": ""}
    report["verdict"] = {"status": "fail", "reasons": [reason]}
    failure = cases(report)["narrowcast.layers", report["layers"][2]["node"]].find("failure")
    assert failure.get("message") == "max_abs is 2, allowed 1"


def test_a_fail_without_reasons_still_fails(passing):
    report = {**passing, "verdict": {"status": "fail", "reasons": []}}
    assert cases(report)["narrowcast.verdict", "verdict"].find("failure").get("message") == "A limit was broken."


def test_unchecked_is_skipped(empty, passing):
    assert cases(empty)["narrowcast.verdict", "verdict"].find("skipped") is not None
    outputs = [{**output, "status": "unchecked"} for output in passing["outputs"]]
    found = suite({**passing, "verdict": {"status": "unchecked", "reasons": []}, "outputs": outputs})
    assert (found.get("skipped"), found.get("failures")) == ("4", "0")


def test_hostile_names_give_valid_xml(hostile):
    text = to_junit(hostile)
    found = ET.fromstring(text).find("testsuite")
    assert found.get("name").startswith("narrowcast </script><img")
    assert b"\x1b" not in text
    assert max(len(case.get("name")) for case in found) <= 1000


def test_the_outcome_stands_before_the_output(failing):
    for case in suite(failing):
        assert case[-1].tag == "system-out"
