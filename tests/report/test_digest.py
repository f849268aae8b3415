"""What every view says first."""

from __future__ import annotations

import copy

import pytest

from converter.report import digest


def edited(report, **members):
    return {**copy.deepcopy(report), **members}


def layer_like(report, **members):
    return {**copy.deepcopy(report["layers"][0]), "node": "n", "value": "v", **members}


def test_the_worst_output_uses_most_of_its_limit(passing):
    outputs = copy.deepcopy(passing["outputs"])
    outputs[1]["allowed"]["max_rel_l2"] = outputs[1]["rel_l2_error"] / 0.99
    assert digest.worst_output(edited(passing, outputs=outputs))["value"] == "pooler_output"


def test_misplaced_elements_make_an_output_the_worst(passing):
    outputs = copy.deepcopy(passing["outputs"])
    outputs[1]["misplaced_nonfinite"] = 1
    assert digest.worst_output(edited(passing, outputs=outputs))["value"] == "pooler_output"


def test_there_is_no_worst_output_without_figures(passing, empty):
    assert digest.worst_output(empty) is None
    assert digest.worst_output(edited(passing, outputs=passing["outputs"][2:])) is None


def test_the_worst_layers_come_first(failing):
    worst = digest.worst_layers(failing, 7)
    assert [bool(layer["misplaced_nonfinite"]) for layer in worst] == [True] * 6 + [False]
    errors = [layer["rel_l2_error"] for layer in worst[:6]]
    assert errors == sorted(errors, reverse=True)


def test_the_first_abnormal_layer_goes_by_value_or_by_node(failing):
    by_value = digest.first_abnormal(failing)
    assert by_value["node"] == "/encoder/layer.0/ffn/Pow"
    assert digest.first_abnormal(edited(failing, first_abnormal=by_value["node"])) == by_value
    assert digest.first_abnormal(edited(failing, first_abnormal=None)) is None
    assert digest.first_abnormal(edited(failing, first_abnormal="gone")) is None


def test_producers_are_the_layers_that_are_read(failing):
    layer = digest.first_abnormal(failing)
    assert [p["node"] for p in digest.producers(failing, layer)] == ["/encoder/layer.0/ffn/up/MatMul"]
    assert digest.producers(failing, failing["layers"][0]) == []


def test_a_body_reads_its_own_value_before_an_outer_one(failing):
    outer = layer_like(failing, value="x", node="outer")
    inner = layer_like(failing, value="x", node="inner", scope="If_1.then_branch/")
    other = layer_like(failing, value="x", node="other", scope="If_1.else_branch/")
    reader = layer_like(failing, value="y", scope="If_1.then_branch/", inputs=["x", "unknown"])
    report = edited(failing, layers=[outer, inner, other, reader])
    assert [p["node"] for p in digest.producers(report, reader)] == ["inner"]
    assert [p["node"] for p in digest.producers(report, {**reader, "scope": "If_9.then_branch/"})] == ["outer"]


def test_decisions_are_counted_by_rule_and_format(failing):
    assert digest.rule_counts(failing) == [
        {"rule": "follow", "format": "fp16", "nodes": 7},
        {"rule": "narrow", "format": "fp16", "nodes": 6},
        {"rule": "softmax", "format": "fp32", "nodes": 1},
    ]


# --------------------------------------------------------------------------------------------- sentences


def test_diagnosis_of_a_pass(passing):
    assert digest.diagnosis(passing) == (
        "Every output is within its limits; the worst, /encoder/layer.0/norm/LayerNormalization_output_0, has a "
        "relative L2 error of 8.56e-4 of 2.10e-3 allowed."
    )


def test_diagnosis_of_a_pass_names_a_layer_that_is_abnormal_all_the_same(passing, failing):
    report = edited(passing, layers=failing["layers"], first_abnormal=failing["first_abnormal"])
    assert "First layer beyond its expectation: /encoder/layer.0/ffn/Pow (its range reaches" in digest.diagnosis(report)


def test_diagnosis_of_a_pass_without_limits_or_figures(passing):
    outputs = copy.deepcopy(passing["outputs"])[:1]
    outputs[0]["allowed"]["max_rel_l2"] = None
    assert digest.diagnosis(edited(passing, outputs=outputs)).endswith("has a relative L2 error of 8.56e-4.")
    assert digest.diagnosis(edited(passing, outputs=[])) == "No output could be compared; no limit was broken."


def test_diagnosis_of_a_fail(failing):
    assert digest.diagnosis(failing) == (
        "Error starts at /encoder/layer.0/ffn/Pow (Pow, FP16): its range reaches 102,180, FP16 ends at 65,504."
    )


def test_diagnosis_of_a_fail_without_an_abnormal_layer(failing):
    report = edited(failing, first_abnormal=None)
    assert digest.diagnosis(report) == failing["verdict"]["reasons"][0]["message"]
    assert digest.diagnosis(edited(report, verdict={"status": "fail", "reasons": []})) == "A limit was broken."


def test_diagnosis_when_nothing_was_compared(empty):
    assert digest.diagnosis(empty) == "Nothing was compared: the model was converted without validation."


def test_diagnosis_is_printable(hostile):
    assert digest.diagnosis(hostile).isprintable()


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"range": {"absmax": 7e4}, "format": "fp16"}, "its range reaches 70,000, FP16 ends at 65,504"),
        ({"range": {"absmax": 7e4}, "format": "fp32"}, "its own rounding makes 1.00e-3"),
        ({"misplaced_nonfinite": 1}, "1 element is NaN or infinite on one side only"),
        ({"misplaced_nonfinite": 12}, "12 elements are NaN or infinite on one side only"),
        ({"saturated": 2}, "2 elements saturated"),
        ({"flushed": 20, "count": 1000}, "20 elements flushed to zero"),
        ({"flushed": 2, "count": 1000}, "its own rounding makes 1.00e-3"),
        ({"local": {"rel_l2_error": 1e-5}}, "alone it makes 1.00e-5, the rest comes from its inputs"),
        ({"local": None}, "relative L2 error 1.00e-3, expected 2.00e-4"),
        ({"local": None, "expected_rel_l2": None}, "relative L2 error 1.00e-3"),
    ],
)
def test_the_cause_is_range_underflow_rounding_or_the_inputs(failing, members, said):
    usual = {"range": None, "format": "fp16", "misplaced_nonfinite": 0, "saturated": 0, "flushed": 0, "count": 1000,
             "rel_l2_error": 1e-3, "expected_rel_l2": 2e-4, "local": {"rel_l2_error": 1e-3}}  # fmt: skip
    assert digest.cause(layer_like(failing, **{**usual, **members})).endswith(said)


def test_the_tolerance_says_where_its_limits_come_from(passing, failing, empty):
    own = "fp16-default: 4 times the expected rounding error, held between 1.00e-3 and 5.00e-2"
    assert digest.tolerance_sentence(passing) == own
    assert digest.tolerance_sentence(failing) == f"relative L2 error of at most 2.10e-3 per output, as asked; {own}"
    assert digest.tolerance_sentence(empty) == "bf16-default"
    request = {**empty["request"], "min_sqnr_db": 50.0}
    assert digest.tolerance_sentence(edited(empty, request=request)) == "SQNR of at least 50.0 dB, as asked"
    tolerance = {**passing["request"]["tolerance"], "outputs": [{}, {}]}
    request = {**passing["request"], "tolerance": tolerance}
    assert digest.tolerance_sentence(edited(passing, request=request)).endswith("; own limits for 2 output patterns")


def test_what_was_compared(passing, empty):
    assert digest.compared_sentence(passing) == "by emulator (ieee) over 2 batches, with FP32 as the reference"
    assert digest.compared_sentence(empty) == "not at all"


def test_sizes_and_shares(passing, empty):
    assert digest.saved(passing["summary"]) == "438 MB → 220 MB (-49.7 %)"
    assert digest.saved(empty["summary"]) == "0 B → 0 B (–)"
    assert digest.narrow_share(passing["summary"]) == "12 of 14 (86 %)"
    assert digest.narrow_share(empty["summary"]) == "0 of 0"


def test_where_a_layer_comes_from():
    assert digest.source_of({"module": "enc.0", "source_line": "m.py:3"}) == "enc.0  m.py:3"
    assert digest.source_of({}) == ""


def test_misplaced_counts_entries_not_elements(failing):
    assert (digest.misplaced(failing["outputs"]), digest.misplaced(failing["layers"])) == (1, 6)
    assert digest.abnormal_count(failing) == 6


def test_a_reason_without_a_message_says_its_numbers(failing):
    assert digest.reason_text(failing["verdict"]["reasons"][1]) == "nonfinite is nan, allowed –"
