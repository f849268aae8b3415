"""Transformers from the files people save them in, to FP16 and BF16 with an honest verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import converter
from converter.report.modules import module_rows
from converter.types import Report
from tests.torch.checking import LIMITS, check, check_exported
from tests.torch.models import TRANSFORMERS, Case


@pytest.mark.parametrize("case", TRANSFORMERS, ids=lambda case: case.name)
def test_exported_programs(case: Case, tmp_path: Path) -> None:
    check_exported(case, tmp_path)


# ------------------------------------------------------------------------------------------ named hazards


def convert_case(name: str, **options: Any) -> Report:
    module, sample = next(case for case in TRANSFORMERS if case.name == name).build()
    return converter.convert(module, sample, **options).report


@pytest.mark.parametrize("overflow", ["clamp", "widen"])
def test_the_residual_of_t5_passes_the_maximum_and_is_explained(overflow: str) -> None:
    report = convert_case("t5", to="fp16", overflow=overflow)
    beyond = {layer.node: layer for layer in report.layers
              if layer.observed and 65504 < layer.observed.absmax < 1e30 and layer.op_type == "Add"}  # fmt: skip
    assert beyond, "the model does not overflow: it proves nothing"
    decisions = {decision.node: decision for decision in report.decisions}
    residual = [decisions[node] for node, layer in beyond.items() if "layer_norm" not in layer.module]
    assert residual
    for decision in residual:
        assert decision.format == "fp32"
        assert decision.evidence is not None
        assert decision.evidence.number > 65504
        assert "65504" in decision.reason
    assert all(output.figures.rel_l2_error < 1e-2 for output in report.outputs if output.figures)  # type: ignore[operator]
    assert report.verdict.status == "pass"


@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_positions_beyond_4096_stay_exact_in_llama(to: str) -> None:
    report = convert_case("llama", to=to)
    kept = [d for d in report.decisions if d.rule == "integers"]
    assert kept
    assert all(d.format == "fp32" for d in kept)
    assert max(d.evidence.number for d in kept if d.evidence) >= 4097
    assert report.outputs[0].figures.rel_l2_error < LIMITS[to]  # type: ignore[union-attr,operator]


def test_layers_of_bert_add_up_by_module() -> None:
    report = convert_case("bert", to="fp16")
    rows = {row["module"]: row for row in module_rows(report.layers)}
    assert {"encoder.layer.0", "encoder.layer.1", "pooler"} <= set(rows)
    assert rows[""]["layers"] == len(report.layers)
    assert sum(row["worst"] for row in rows.values()) == 1
    line = next(layer.source_line for layer in report.layers if layer.module == "encoder.layer.0.attention.self.query")
    assert line.startswith("transformers/models/bert/modeling_bert.py:")


def test_a_folder_as_hugging_face_writes_it(tmp_path: Path) -> None:
    module, sample = next(case for case in TRANSFORMERS if case.name == "bert").build()
    module.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    done = converter.convert(tmp_path / "bert", sample, output=tmp_path / "bert.onnx")
    check(done.report, "fp16", tmp_path / "bert.onnx")
    facts = done.report.program
    assert facts is not None
    assert (facts.kind, facts.module) == ("Hugging Face folder", "BertModel")
    assert facts.dynamic == ("input_ids:0", "attention_mask:0")
