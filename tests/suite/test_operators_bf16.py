"""onnx's operator suite to BF16."""

from .checks import OperatorSuite


class TestBf16(OperatorSuite):
    to = "bf16"
