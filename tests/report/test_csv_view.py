"""The layers as a table for spreadsheets."""

from __future__ import annotations

import copy
import csv
import io

import pytest

from converter.report.csv_view import COLUMNS, to_csv


def rows(report):
    return list(csv.DictReader(io.StringIO(to_csv(report).decode("utf-8"), newline="")))


@pytest.mark.parametrize("name", ["passing", "failing"])
def test_golden(name, golden, request):
    golden(f"{name}.csv", to_csv(request.getfixturevalue(name)))


def test_one_row_per_layer_in_order(failing):
    found = rows(failing)
    assert [row["node"] for row in found] == [layer["node"] for layer in failing["layers"]]
    assert [float(row["rel_l2_error"]) for row in found] == [layer["rel_l2_error"] for layer in failing["layers"]]
    assert found[3]["rule"] == "softmax"


def test_lines_end_as_rfc_4180_wants(failing):
    text = to_csv(failing)
    assert text.count(b"\r\n") == len(failing["layers"]) + 1
    assert text.split(b"\r\n")[0].decode() == ",".join(COLUMNS)


def test_no_text_cell_begins_a_formula(hostile):
    found = rows(hostile)
    for row, layer in zip(found, hostile["layers"], strict=True):
        for name in ("value", "node", "op_type", "module", "source_line"):
            whole = layer.get(name, "").replace("\ud800", "\\ud800")
            assert row[name] in (whole, f"'{whole}") or len(row[name]) == 32_000
            assert not row[name].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(1)", "\tx", "\rx", "\nx", "＝1"])
def test_every_dangerous_beginning_gets_a_quote(failing, text):
    layers = [{**copy.deepcopy(failing["layers"][0]), "node": text}]
    assert rows({**failing, "layers": layers})[0]["node"] == f"'{text}"


def test_harmless_text_and_negative_numbers_stay(failing):
    layers = [{**copy.deepcopy(failing["layers"][8]), "node": "a=b"}]
    row = rows({**failing, "layers": layers})[0]
    assert row["node"] == "a=b"
    assert float(row["headroom_bits"]) < 0
    assert float(row["range_min"]) < 0


def test_quotes_commas_and_newlines_survive(failing):
    name = 'a,"b"\r\nc'
    layers = [{**copy.deepcopy(failing["layers"][0]), "node": name}]
    assert rows({**failing, "layers": layers})[0]["node"] == name


def test_missing_figures_are_empty_and_non_finite_ones_named(failing):
    layer = {**copy.deepcopy(failing["layers"][0]), "local": None, "range": None, "headroom_bits": None}
    layer["headroom_bits_nonfinite"] = "-inf"
    row = rows({**failing, "layers": [layer]})[0]
    assert (row["local_rel_l2_error"], row["range_absmax"], row["max_ulp_error"]) == ("", "", "")
    assert row["headroom_bits"] == "-inf"


def test_a_lone_surrogate_does_not_stop_it(hostile):
    assert b"lone surrogate \\ud800 end" in to_csv(hostile)


def test_a_scalar_has_a_shape(failing):
    layers = [{**copy.deepcopy(failing["layers"][0]), "shape": []}]
    assert rows({**failing, "layers": layers})[0]["shape"] == "scalar"


def test_nothing_but_the_head_without_layers(empty):
    assert rows(empty) == []
