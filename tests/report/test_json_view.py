"""The JSON contract: layout, numbers, determinism, and what is refused on the way back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from converter.errors import InputError
from converter.report.conform import report_schema
from converter.report.json_view import SCHEMA_VERSION, dump, read_report, report_object, to_json
from converter.types import OutputTolerance
from tests.report import examples

EXAMPLES = {
    "passing": examples.passing,
    "failing": examples.failing,
    "hostile": examples.hostile,
    "empty": examples.empty,
    "bf16": lambda: examples.passing(to="bf16"),
}


def refuse(name):
    raise AssertionError(f"{name} in JSON")


@pytest.fixture(params=EXAMPLES, scope="module")
def written(request):
    return to_json(EXAMPLES[request.param]())


@pytest.mark.parametrize("name", ["passing", "failing", "empty"])
def test_golden(name, golden):
    golden(f"{name}.json", to_json(EXAMPLES[name]()))


def test_is_strict_json_that_conforms_to_the_schema(written):
    content = json.loads(written, parse_constant=refuse)
    jsonschema.Draft202012Validator.check_schema(report_schema())
    jsonschema.Draft202012Validator(report_schema()).validate(content)


def test_reads_back_to_the_same_bytes(written):
    assert dump(read_report(written)) == written


def test_equal_reports_give_equal_bytes():
    assert to_json(examples.failing(3)) == to_json(examples.failing(3))


def test_only_timings_differ_between_two_runs_and_they_stand_last():
    report = examples.passing()
    first, second = to_json(report), to_json(replace(report, timings={"load": 9.9}))
    assert list(json.loads(first))[-1] == "timings"
    assert first.split(b'"timings"')[0] == second.split(b'"timings"')[0]


def test_top_level_keys_stand_in_the_order_of_the_schema(written):
    assert list(json.loads(written)) == list(report_schema()["required"])


def test_a_long_list_holds_one_object_per_line(passing):
    lines = to_json(examples.passing()).decode().splitlines()
    start = lines.index('  "layers": [')
    assert [json.loads(line.rstrip(","))["node"] for line in lines[start + 1 : start + 15]] == [
        layer["node"] for layer in passing["layers"]
    ]


def test_every_float_output_states_a_plain_number(passing):
    stated = {
        output["value"]: output["rel_l2_error"] for output in passing["outputs"] if output["type"] == "tensor(float)"
    }
    assert all(type(error) is float for error in stated.values())
    assert len(stated) == 2


def test_outputs_borrow_what_is_known_of_them_as_a_layer(passing):
    first, pooler, ids = passing["outputs"]
    layer = passing["layers"][-1]
    assert (first["node"], first["op_type"], first["range"], first["local"]) == (
        layer["node"],
        layer["op_type"],
        layer["range"],
        layer["local"],
    )
    assert (pooler["node"], pooler["range"], pooler["local"]) == ("", None, None)
    assert (ids["rel_l2_error"], ids["mismatches"], ids["status"]) == (None, 0, "within limits")


def test_output_status_follows_the_verdict(failing, empty):
    assert [output["status"] for output in failing["outputs"]] == ["over limit", "within limits", "within limits"]
    unchecked = replace(examples.empty(), outputs=(examples.ids_output(),))
    assert report_object(unchecked)["outputs"][0]["status"] == "unchecked"


def test_the_node_in_a_body_does_not_speak_for_an_output_of_the_same_name():
    report = examples.passing()
    inner = replace(report.layers[-1], node="inner", scope="If_1.then_branch/")
    assert (
        report_object(replace(report, layers=(inner, *report.layers)))["outputs"][0]["node"] == report.layers[-1].node
    )


@pytest.mark.parametrize(("number", "text"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_a_non_finite_number_is_null_beside_its_name(number, text):
    report = examples.passing()
    layer = replace(report.layers[0], headroom_bits=number)
    found = report_object(replace(report, layers=(layer,)))["layers"][0]
    assert (found["headroom_bits"], found["headroom_bits_nonfinite"]) == (None, text)
    assert list(found).index("headroom_bits_nonfinite") == list(found).index("headroom_bits") + 1


def test_a_reason_keeps_its_place_and_its_non_finite_value(failing):
    first, second, third = failing["verdict"]["reasons"]
    assert list(first) == ["limit", "value", "allowed", "output", "message"]
    assert (second["value"], second["value_nonfinite"], second["allowed"]) == (None, "nan", None)
    assert third["layer"] == "/encoder/layer.0/ffn/Pow"
    assert "output" not in third


def test_numpy_scalars_become_plain_numbers():
    report = examples.passing()
    summary = replace(
        report.summary, nodes=np.int64(7), narrow_flops_share=np.float64(0.5), estimated_gain=np.float32(2)
    )
    layer = replace(
        report.layers[0], local=replace(report.layers[0].local, equal=np.bool_(False), flushed=np.uint32(3))
    )
    found = json.loads(to_json(replace(report, summary=summary, layers=(layer,))))
    assert (found["summary"]["nodes"], found["summary"]["narrow_flops_share"]) == (7, 0.5)
    assert found["layers"][0]["local"]["equal"] is False
    assert found["layers"][0]["local"]["flushed"] == 3


def test_floats_keep_all_their_digits():
    report = replace(examples.passing(), outputs=(examples.output("y", 0.1 + 0.2),))
    assert b'"rel_l2_error": 0.30000000000000004' in to_json(report)


def test_a_histogram_loses_its_empty_ends(passing):
    exponents = passing["layers"][0]["range"]["exponents"]
    counts = examples.passing().layers[0].observed.exponents
    assert exponents["counts"] == [c for c in counts if c]
    assert counts[exponents["lowest"] + 127] == exponents["counts"][0]


def test_a_value_without_magnitudes_has_no_histogram():
    report = examples.passing()
    zero = replace(report.layers[0].observed, exponents=(0,) * 256)
    layer = replace(report.layers[0], observed=zero)
    assert report_object(replace(report, layers=(layer,)))["layers"][0]["range"]["exponents"] is None


def test_a_layer_that_did_not_run_has_all_keys_and_no_figures(passing):
    report = examples.passing()
    absent = replace(report.layers[0], accumulated=None, local=None, observed=None, headroom_bits=None,
                     expected_rel_l2=None, status="not run")  # fmt: skip
    found = report_object(replace(report, layers=(absent,)))["layers"][0]
    assert list(found) == list(passing["layers"][0])
    assert (found["rel_l2_error"], found["count"], found["range"], found["local"]) == (None, None, None, None)


def test_optional_keys_of_a_layer_stand_only_when_they_say_something():
    report = examples.passing()
    bare = replace(report.layers[0], module="", source_line="", inputs=(), scope="")
    full = replace(report.layers[0], module="m", source_line="m.py:3", inputs=("x",), scope="Loop_1.body/")
    first, second = report_object(replace(report, layers=(bare, full)))["layers"]
    assert [key for key in second if key not in first] == ["scope", "module", "source_line", "inputs"]


def test_local_figures_leave_out_what_was_not_asked_for():
    report = examples.passing()
    measured = replace(report.layers[0], local=examples.figures(1e-4, 3.0, full=True))
    plain, full = report_object(replace(report, layers=(report.layers[0], measured)))["layers"]
    assert "max_ulp_error" not in plain["local"]
    assert full["local"]["max_ulp_error"] == pytest.approx(0.9)


def test_limits_of_single_outputs_name_their_pattern():
    report = examples.passing()
    own = replace(report.request.tolerance, outputs=(("boxes*", OutputTolerance(max_abs=0.5)),))
    found = report_object(replace(report, request=replace(report.request, tolerance=own)))["request"]["tolerance"]
    assert found["outputs"] == [
        {"output": "boxes*", "max_rel_l2": None, "min_sqnr_db": None, "max_abs": 0.5, "min_top1_agreement": None}
    ]


def test_a_lone_surrogate_survives_the_round_trip():
    report = replace(examples.passing(), first_abnormal="bad \ud800 name")
    assert to_json(report).decode("utf-8")
    assert read_report(to_json(report))["first_abnormal"] == "bad \ud800 name"


def test_reads_from_a_file(tmp_path):
    path = tmp_path / "report.json"
    path.write_bytes(to_json(examples.passing()))
    assert read_report(path) == read_report(str(path)) == read_report(path.read_bytes())


# ----------------------------------------------------------------------------------------------- refusals


def changed(**members):
    return json.dumps({**json.loads(to_json(examples.passing())), **members}).encode()


def test_refuses_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"absent\.json cannot be read: No such file or directory"):
        read_report(tmp_path / "absent.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000])
def test_refuses_what_is_no_json(content):
    with pytest.raises(
        InputError, match=r"the report is no JSON: .+; give a file that `narrowcast convert --report` wrote"
    ):
        read_report(content)


def test_says_that_nan_is_no_number():
    with pytest.raises(InputError, match="NaN is no JSON number"):
        read_report(b'{"a": NaN}')


@pytest.mark.parametrize("content", [b"[]", b"3", b"{}", b'{"schema_version": 1}'])
def test_refuses_json_that_is_no_report(content):
    with pytest.raises(InputError, match="the report is JSON but no narrowcast report: it has no schema_version"):
        read_report(content)


def test_refuses_another_major_version(tmp_path):
    path = Path(tmp_path / "old.json")
    path.write_bytes(changed(schema_version="2.0"))
    expected = (
        rf"old\.json has report schema version '2\.0', this narrowcast reads '{SCHEMA_VERSION}'; use the narrowcast"
    )
    with pytest.raises(InputError, match=expected):
        read_report(path)


def test_accepts_a_later_minor_version_with_unknown_keys():
    content = read_report(changed(schema_version="1.7", novelty={"a": 1}))
    assert content["novelty"] == {"a": 1}


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ({"layers": {}}, "layers is {} and should be array"),
        ({"batches": -1}, "batches is -1, less than 0"),
        ({"batches": True}, "batches is true and should be integer"),
        ({"verdict": {"status": "good", "reasons": []}}, r"verdict.status is \"good\" and should be one of pass, fail"),
        ({"findings": [{"kind": "x", "where": "y"}]}, r"findings\[0\].message is missing"),
        ({"converted": 3}, "converted is 3 and should be object"),
    ],
)
def test_refuses_a_report_of_another_shape(members, wrong):
    with pytest.raises(InputError, match=f"the report is no valid narrowcast report: {wrong}"):
        read_report(changed(**members))


def test_refuses_a_number_too_large_for_a_float():
    content = to_json(examples.passing()).replace(b'"narrow_flops_share": 0.973', b'"narrow_flops_share": 1e999')
    with pytest.raises(InputError, match=r"summary.narrow_flops_share is Infinity and should be null or number"):
        read_report(content)


def test_a_message_does_not_repeat_a_long_value():
    with pytest.raises(InputError, match=r"batches is \"x{59}… and should be integer"):
        read_report(changed(batches="x" * 1000))
