"""Exporters' reasons: the telling lines, the line of the program, and what to do."""

from __future__ import annotations

import pytest

from converter.source.torch_program.reasons import failed, reason


def chained(outer: str, inner: str) -> Exception:
    error = RuntimeError(outer)
    error.__cause__ = ValueError(inner)
    return error


def test_the_innermost_reason_without_noise() -> None:
    text = (
        "Could not guard on data-dependent expression Eq(u0, 1).\n\nconsider using data-dependent friendly APIs\n"
        "Caused by: (x.py:1)\nFor more information, run with TORCH_LOGS\n\nThe following call raised this error:\n"
        '  File "/home/me/net.py", line 12, in forward\n    return x if x.sum() > 0 else -x\n'
    )
    assert reason(chained("outer", text)) == (
        "Could not guard on data-dependent expression Eq(u0, 1). (net.py:12 in forward)"
    )


def test_colours_and_lengths() -> None:
    assert reason(ValueError("\x1b[96mstep 2\x1b[0m failed")) == "step 2 failed"
    assert len(reason(ValueError("x" * 5000))) == 501
    assert reason(ValueError()) == "ValueError"


def test_torchscript_speaks_in_its_last_line() -> None:
    text = (
        "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript\n"
        "RuntimeError: Expected hidden[0] size (4, 4, 16), got [8, 2, 16]\n"
    )
    assert reason(RuntimeError(text)) == "Expected hidden[0] size (4, 4, 16), got [8, 2, 16]"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Could not guard on data-dependent expression", "write it with torch.where or torch.cond"),
        ("You marked x as dynamic but your code specialized it to be a constant (2)", "leave that --dynamic out"),
        ("a view of a leaf Variable is being used in an in-place operation", "write the result to a new tensor"),
        ("No ONNX function found for <OpOverload(op='aten.svd')>", "that operator has no ONNX form"),
        (".numpy() is not supported for tensor subclasses.", "keep the whole computation in tensors"),
        ("aten.fake_quantize_per_tensor_affine_cachemask.default", "give the FP32 program that it was made from"),
        ("Exporting a ScriptModule is not supported", "save the module with torch.export.save"),
    ],
)
def test_advice(said: str, advice: str) -> None:
    assert advice in str(failed(RuntimeError(said), "torch.export"))


def test_unknown_reasons_come_without_advice() -> None:
    assert str(failed(RuntimeError("odd thing"), "torch.export")) == "torch.export failed: odd thing"


def test_a_bare_name_comes_with_the_kind_of_error() -> None:
    assert reason(KeyError("linear")) == "KeyError: 'linear'"
