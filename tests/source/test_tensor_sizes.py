"""Tensors in the file that hold more or less than their shape asks for."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from converter.errors import ModelError
from converter.source.tensor_sizes import check_tensors


def model_with(tensor: TensorProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph([], "g", [], [], [tensor]))


def test_right_tensors_pass() -> None:
    for dtype in (np.float32, np.int64, np.bool_, np.float16, np.complex64):
        check_tensors(model_with(numpy_helper.from_array(np.ones((3, 2), dtype), "w")))
    check_tensors(model_with(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])))
    check_tensors(model_with(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.0, 2.0])))
    check_tensors(model_with(helper.make_tensor("w", TensorProto.INT4, [3], [1, 2, 3])))
    check_tensors(model_with(helper.make_tensor("w", TensorProto.STRING, [1], ["a"])))
    check_tensors(model_with(numpy_helper.from_array(np.ones((0, 3), np.float32), "w")))
    check_tensors(model_with(numpy_helper.from_array(np.ones((1024, 1024), np.float32), "w" * 300)))


@pytest.mark.parametrize("shape", [(2, 2), (1024, 1024)])
def test_short_bytes_are_refused_with_both_numbers(shape: tuple[int, ...]) -> None:
    tensor = numpy_helper.from_array(np.ones(shape, np.float32), "w")
    tensor.raw_data = tensor.raw_data[:-300] if shape[0] > 2 else b"abc"
    with pytest.raises(ModelError, match=re.escape(f"tensor 'w' of shape {list(shape)} takes {4 * np.prod(shape)} ")):
        check_tensors(model_with(tensor))


def test_too_many_numbers_are_refused() -> None:
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    tensor.float_data.append(3.0)
    with pytest.raises(ModelError, match="takes 2 numbers and holds 3; the file is damaged"):
        check_tensors(model_with(tensor))


def test_a_negative_size_is_refused_in_a_constant_of_a_body() -> None:
    inner = helper.make_node("Constant", [], ["k"], value=helper.make_tensor("k", TensorProto.FLOAT, [0], []))
    inner.attribute[0].t.dims[0] = -1
    body = helper.make_graph([inner], "b", [], [])
    owner = helper.make_node("If", ["c"], [], then_branch=body, else_branch=body)
    with pytest.raises(ModelError, match="tensor 'k' of shape \\[-1\\] has a negative size"):
        check_tensors(helper.make_model(helper.make_graph([owner], "g", [], [])))


@pytest.mark.parametrize("element", [0, 99])
def test_an_unknown_element_type_is_refused(element: int) -> None:
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "w")
    tensor.data_type = element
    with pytest.raises(ModelError, match=f"tensor 'w' of shape \\[2\\] has no known element type \\({element}\\)"):
        check_tensors(model_with(tensor))
