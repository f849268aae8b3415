"""ONNX Runtime at arm's length: sessions by signature, errors on one line, rounding through its Cast."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from converter.formats import BF16, FP16, FloatFormat
from converter.runtime.session import (
    CastRounder,
    Kernel,
    KernelCache,
    KernelFailure,
    KernelMissing,
    Signature,
    Threads,
    WholeModel,
    contiguous,
    contributed_schemas,
    one_line,
)
from tests.models.build import model


def signature(op_type: str, inputs: int = 1, kind: str = "tensor(float)", **attributes: object) -> Signature:
    node = onnx.helper.make_node(op_type, [f"i{k}" for k in range(inputs)], ["o0"], **attributes)
    return Signature(node.SerializeToString(), (("", 17),), (kind,) * inputs, (None,) * inputs)


class TestKernel:
    def test_runs_one_operator(self) -> None:
        x = np.array([-1.0, 2.0], np.float32)
        np.testing.assert_array_equal(Kernel(signature("Relu"), Threads()).run([x])[0], [0, 2])

    def test_constants_are_not_fed(self) -> None:
        kernel = Kernel(signature("Add", 2), Threads(), {"i1": np.array([5.0], np.float32)})
        np.testing.assert_array_equal(kernel.run([np.ones(1, np.float32), None])[0], [6])

    def test_what_it_refuses_to_build(self) -> None:
        with pytest.raises(KernelMissing, match=r"No Op registered for Nothing"):
            Kernel(signature("Nothing"), Threads())

    def test_what_it_has_no_implementation_for(self) -> None:
        with pytest.raises(KernelMissing, match=r"Could not find an implementation for Hard"):
            Kernel(signature("HardSwish", kind="tensor(double)"), Threads())

    def test_what_fails_while_it_runs(self) -> None:
        kernel = Kernel(signature("MatMul", 2), Threads())
        with pytest.raises(KernelFailure, match=r"MatMul") as failed:
            kernel.run([np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)])
        assert "\n" not in str(failed.value)

    def test_the_cache_knows_equal_signatures(self) -> None:
        cache = KernelCache()
        assert cache.get(signature("Relu")) is cache.get(signature("Relu"))
        assert cache.fresh(signature("Relu")) is not cache.get(signature("Relu"))
        assert cache.get(signature("Abs")) is not cache.get(signature("Relu"))
        assert len(cache) == 2


class TestWholeModel:
    TEXT = "g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x)  z = Neg(x) }"

    def test_outputs_by_name(self) -> None:
        found = WholeModel(model(self.TEXT).SerializeToString()).run({"x": np.array([-1.0, 2.0], np.float32)})
        assert {k: v.tolist() for k, v in found.items()} == {"y": [0, 2], "z": [1, -2]}

    def test_a_model_that_does_not_load(self) -> None:
        with pytest.raises(KernelFailure):
            WholeModel(b"nothing")

    def test_feeds_that_do_not_fit(self) -> None:
        with pytest.raises(KernelFailure, match=r"x"):
            WholeModel(model(self.TEXT).SerializeToString()).run({"x": np.zeros(2, np.int64)})


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
def test_rounding_is_numpys_cast_bit_for_bit(fmt: FloatFormat) -> None:
    """Every number of the format, its neighbours in FP32, every tie, and what lies beyond."""
    codes = np.arange(2**16, dtype=np.uint16).view(fmt.dtype).astype(np.float32)
    numbers = np.sort(codes[np.isfinite(codes)])
    ties = (numbers[1:].astype(np.float64) + numbers[:-1]) / 2
    near = np.concatenate([numbers, ties.astype(np.float32)])
    edge = np.float32([fmt.overflow_threshold, 3.4e38, np.inf, 0.0])
    x = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf)), edge])
    x = np.concatenate([x, -x, [np.float32(np.nan)]])
    with np.errstate(over="ignore"):
        expected = x.astype(fmt.dtype).astype(np.float32)
    assert fmt.onnx_type is not None
    got = CastRounder(fmt.onnx_type)(x)
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all()


def test_an_error_is_one_line_without_paths() -> None:
    text = "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could\n  not find\tit"
    assert one_line(RuntimeError(text)) == "NOT_IMPLEMENTED : Could not find it"
    assert one_line(ValueError("plain\ntext")) == "plain text"
    assert len(one_line(ValueError("x" * 1000))) == 400


def test_contributed_schemas_are_records() -> None:
    found = {(s.domain, s.op_type): s for s in contributed_schemas()}
    gelu = found["com.microsoft", "FusedMatMul"]
    assert gelu.input_names == ("A", "B")
    assert gelu.allows("T", "tensor(float16)")
    assert ("", "Relu") in found


def test_contiguous_copies_only_what_has_to_be() -> None:
    x = np.ones((2, 3), np.float32)
    assert contiguous(x) is x
    assert contiguous(x.T).flags.c_contiguous
