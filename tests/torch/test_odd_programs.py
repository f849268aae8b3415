"""Odd programs: each is traced rightly or refused in words that name what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import converter
from converter.errors import BatchError, ModelError
from converter.source.torch_program.load import from_exported, from_module
from converter.source.torch_program.reasons import ExportFailed
from tests.torch.models import floats

Traced = Callable[..., tuple[Any, Path]]
X = floats(3, 4)


def program(forward: Callable[..., Any]) -> nn.Module:
    """A module with one linear layer ``fc`` and a forward of one's own."""
    torch.manual_seed(0)
    module = type("Odd", (nn.Module,), {"forward": forward})()
    module.fc = nn.Linear(4, 4)
    return module.eval()  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------ arguments


def test_arguments_without_names_keep_their_batch_open(traced: Traced) -> None:
    facts, _ = traced(program(lambda self, *parts: self.fc(parts[0]) * parts[1]), {"0": X, "1": X})
    assert facts.dynamic == ("0:0", "1:0")
    assert facts.notes == ()


def test_arguments_by_any_name_are_not_taken(traced: Traced) -> None:
    with pytest.raises(BatchError, match="has key 'y', which is no argument of the program; it takes 'x'"):
        traced(program(lambda self, x, **more: self.fc(x) * more["y"]), {"x": X, "y": X})


@pytest.mark.parametrize(
    ("given", "kind"),
    [(torch.zeros(2, 4, dtype=torch.complex64), "complex64"), (torch.eye(4).to_sparse(), "sparse_coo")],
)
def test_tensors_no_graph_takes(traced: Traced, given: torch.Tensor, kind: str) -> None:
    text = f"argument 'x' of batch 'batch 0' is a tensor of {kind}; a program takes dense floats, integers and booleans"
    with pytest.raises(BatchError, match=text):
        traced(program(lambda self, x: self.fc(x.real)), {"x": given})


def test_doubles_are_taken_where_a_program_was_exported_with_them(traced: Traced) -> None:
    module = program(lambda self, x: self.fc(x.float()))
    exported = from_exported(torch.export.export(module, (torch.from_numpy(X).double(),)))
    facts, _ = traced(exported, {"x": X.astype(np.float64)})
    assert facts.inputs[0].type == "float64"
    with pytest.raises(BatchError, match=r"has element type float32, the program takes float64; .*astype\('float64'\)"):
        traced(exported, {"x": X})
    with pytest.raises(BatchError, match=r"has element type float64; convert it with .astype\('float32'\)"):
        traced(module, {"x": X.astype(np.float64)})


def test_numbers_that_differ_between_batches(traced: Traced) -> None:
    def forward(self: Any, x: torch.Tensor, k: float) -> torch.Tensor:
        return self.fc(x) * k  # type: ignore[no-any-return]

    batches = [{"x": X, "k": np.array(2.0)}, {"x": X, "k": np.array(3.0)}]
    with pytest.raises(BatchError, match=r"argument 'k' of batch 'batch 1' is 3.0, and 2.0 in the first batch; a num"):
        traced(program(forward), *batches)


# ------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("result", [None, (), {"rows": 3, "name": "none"}])
def test_programs_that_return_no_tensor(traced: Traced, result: Any) -> None:
    with pytest.raises(ExportFailed, match="the program returns no tensor, so there is nothing to convert"):
        traced(program(lambda self, x: result), {"x": X})


@pytest.mark.parametrize(
    ("make", "kind"),
    [(lambda x: torch.complex(x, x), "complex64"), (lambda x: torch.eye(4).to_sparse(), "sparse_coo")],
)
def test_results_no_output_can_be(traced: Traced, make: Callable[[Any], Any], kind: str) -> None:
    with pytest.raises(
        ExportFailed, match=rf"result\['y'\] is a tensor of {kind}, which no ONNX output can be; .*real"
    ):
        traced(program(lambda self, x: {"y": make(x)}), {"x": X})


def test_keys_with_dots_get_names_of_their_own(traced: Traced) -> None:
    facts, folder = traced(program(lambda self, x: {"a.b": self.fc(x), "a": {"b": x}}), {"x": X})
    assert [(o.name, o.result) for o in facts.outputs] == [("a.b", "result['a.b']"), ("a.b_2", "result['a']['b']")]
    assert [v.name for v in onnx.load(folder / "model.onnx").graph.output] == ["a.b", "a.b_2"]
    with np.load(folder / "expected" / "0.npz") as expected:
        assert np.array_equal(expected["a.b_2"], X)


# ------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("way", [from_module, lambda m: from_module(torch.jit.script(m)), lambda m: exported(m)])
def test_the_reference_is_fp32_however_a_program_is_given(kind: torch.dtype, way: Callable[[nn.Module], Any]) -> None:
    module = nn.Sequential(nn.Linear(4, 4)).to(kind).eval()
    text = rf"parameters of type {str(kind)[6:]}; the reference is FP32: call .float\(\) on the module before"
    with pytest.raises(ModelError, match=text):
        way(module)


def exported(module: nn.Module) -> Any:
    kind = next(module.parameters()).dtype
    return from_exported(torch.export.export(module, (torch.zeros(2, 4, dtype=kind),)))


def test_formats_of_the_programs_own_are_told() -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.fc(x) * 2  # type: ignore[no-any-return]

    report = converter.convert(program(forward), {"x": X}).report
    (finding,) = (f for f in report.findings if f.kind == "trace-formats")
    assert finding.message.startswith("the program itself computes in BF16 somewhere (autocast, .half(), .double()); ")


def test_quantised_programs_are_refused(traced: Traced) -> None:
    module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear})
    advice = "the program is quantised already: give the FP32 program that it was made from"
    for given in (module, from_module(torch.jit.script(module))):
        with pytest.raises(ExportFailed, match=advice):
            traced(given, {"input": X})


def test_causal_attention_whose_fusion_ends_the_process_of_onnx_runtime() -> None:
    """Its FP16 mix is found to kill a process that loads it, and a coarser one is given."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.full((5, 5), float("-inf")).triu(1)
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]  # type: ignore[no-any-return]

    done = converter.convert(Causal().eval(), {"x": floats(2, 5, 8)})
    assert done.report.verdict.status == "pass"
    assert done.report.summary.narrow_nodes > 0
    assert done.model is not None
    onnx.checker.check_model(ir.to_proto(done.model))
