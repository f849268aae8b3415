"""onnx's operator suite to FP16."""

from .checks import OperatorSuite


class TestFp16(OperatorSuite):
    to = "fp16"
