"""Node data for Model Explorer."""

from __future__ import annotations

import copy
import json

from converter.formats import FP16
from converter.report.model_explorer_view import to_model_explorer


def graph(report):
    (name,) = content = json.loads(to_model_explorer(report))
    return name, content[name]


def test_maps_nodes_to_their_error(failing):
    name, found = graph(failing)
    assert name == "main_graph"
    assert {node: entry["value"] for node, entry in found["results"].items()} == {
        layer["node"]: layer["rel_l2_error"] for layer in failing["layers"]
    }


def test_misplaced_elements_are_black(failing):
    results = graph(failing)[1]["results"]
    assert results["/encoder/layer.0/ffn/Pow"]["bgColor"] == "#1a1a1a"
    assert "bgColor" not in results["/encoder/layer.0/ffn/up/MatMul"]


def test_a_node_with_several_values_shows_its_worst(failing):
    layer = copy.deepcopy(failing["layers"][0])
    bad = {**layer, "rel_l2_error": 0.5, "misplaced_nonfinite": 1}
    results = graph({**failing, "layers": [layer, bad, layer]})[1]["results"]
    assert results == {layer["node"]: {"value": 0.5, "bgColor": "#1a1a1a", "textColor": "#ffffff"}}


def test_thresholds_rise_from_the_formats_roundoff_and_hold_every_error(failing):
    bounds = [threshold["value"] for threshold in graph(failing)[1]["thresholds"]]
    assert bounds == sorted(bounds)
    assert bounds[0] == FP16.unit_roundoff
    assert bounds[-1] > 1e38


def test_layers_without_figures_and_graphs_without_names(failing):
    layer = {**copy.deepcopy(failing["layers"][0]), "rel_l2_error": None}
    unnamed = {**copy.deepcopy(failing["layers"][1]), "node": ""}
    model = {**failing["model"], "graph": ""}
    name, found = graph({**failing, "model": model, "layers": [layer, unnamed]})
    assert name == "main_graph"
    assert list(found["results"]) == [unnamed["value"]]


def test_hostile_names(hostile):
    assert len(graph(hostile)[1]["results"]) == len({layer["node"] or layer["value"] for layer in hostile["layers"]})
