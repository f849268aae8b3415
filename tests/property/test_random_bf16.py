"""Random graphs to BF16."""

from .checks import RandomGraphs


class TestBf16(RandomGraphs):
    to = "bf16"
