"""Random graphs to FP16."""

from .checks import RandomGraphs


class TestFp16(RandomGraphs):
    to = "fp16"
