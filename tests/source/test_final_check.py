"""The last word on a model, and what must not be shown to it."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from converter.source.final_check import checker_problem
from tests.models.build import model

HIDDEN = {
    "EyeLike": "z = EyeLike(q)",
    "LabelEncoder": "z = ai.onnx.ml.LabelEncoder <keys_floats = [1.0], values_floats = [2.0]> (q)",
    "RegexFullMatch": 'z = RegexFullMatch <pattern = "a"> (q)',
    "TreeEnsemble": "z = ai.onnx.ml.TreeEnsemble <n_targets = 1> (q)",
}
IMPORTS = {"ai.onnx.ml": 5, "com.microsoft": 1}


def problem(text: str) -> str | None:
    made = model(text, 21)
    for domain, version in IMPORTS.items():
        if all(o.domain != domain for o in made.opset_import):
            made.opset_import.append(onnx.helper.make_opsetid(domain, version))
    return checker_problem(ir.from_proto(made))


def test_a_valid_model_has_none() -> None:
    assert problem("g (float[2] x) => (float[2] y) { y = Relu(x) }") is None


def test_the_first_complaint() -> None:
    assert "op_type:Relu" in str(problem("g (float[2] x) => (int64[2] y) { y = Relu(x) }"))


@pytest.mark.parametrize("node", HIDDEN.values(), ids=HIDDEN)
def test_inference_that_reads_null_pointers_is_not_asked(node: str) -> None:
    """Without a known type for q, onnx ends the process here."""
    assert (
        problem(f"g (float[2,2] x) => (float[2,2] y) {{ q = com.microsoft.QuickGelu(x) {node} y = Relu(x) }}") is None
    )


@pytest.mark.parametrize("node", HIDDEN.values(), ids=HIDDEN)
def test_nor_in_bodies(node: str) -> None:
    text = (
        "g (float[2,2] x, bool c) => (float[2,2] y) { q = com.microsoft.QuickGelu(x) y = If(c) <then_branch = a () =>"
        f" (float[2,2] r) {{ {node} r = Relu(x) }}, else_branch = b () => (float[2,2] s) {{ s = Relu(x) }}> }}"
    )
    assert problem(text) is None


def test_where_types_are_known_they_are_checked() -> None:
    found = problem("g (float[2,2] x) => (int64[2,2] y) { y = EyeLike <dtype = 1> (x) }")
    assert "EyeLike" in str(found)
    assert "elem type differs" in str(found)
