"""Rule 1, hidden overflow inside an operator, and the reduction depths it needs."""

from __future__ import annotations

import numpy as np
import pytest

from converter.policy.depth import reduction_depth
from converter.policy.rules.hidden_range import hidden_range
from tests.models.run import floats
from tests.policy.rules.asking import context, refusals


class TestSquares:
    TEXT = "g (float[1, 8] x) => (float[1, 1] y) { [norm] y = ReduceL2<axes = [1], keepdims = 1>(x) }"

    def test_a_sum_of_squares_that_passes_the_maximum(self) -> None:
        refusal = refusals(hidden_range, context(self.TEXT, {"x": np.full((1, 8), 100, np.float32)}), "norm")["norm"]
        assert refusal.reason == (
            "inside, absmax^2*depth reaches 80000 (input 'x' has absmax 100, 8 terms); FP16 ends at 65504"
        )

    def test_one_that_does_not(self) -> None:
        assert refusals(hidden_range, context(self.TEXT, {"x": np.full((1, 8), 90, np.float32)}), "norm") == {}

    def test_bf16_has_room(self) -> None:
        given = context(self.TEXT, {"x": np.full((1, 8), 1e10, np.float32)}, to="bf16")
        assert refusals(hidden_range, given, "norm") == {}

    def test_without_samples_nothing_is_known(self) -> None:
        assert refusals(hidden_range, context(self.TEXT), "norm") == {}


class TestSums:
    TEXT = "g (float[1, 1000] x) => (float[1, 1] y) { [mean] y = ReduceMean<axes = [1], keepdims = 1>(x) }"

    def test_terms_of_one_sign_add_up(self) -> None:
        assert "mean" in refusals(hidden_range, context(self.TEXT, {"x": np.full((1, 1000), 100, np.float32)}), "mean")

    def test_terms_of_both_signs_walk(self) -> None:
        signs = np.tile([100, -100], 500).astype(np.float32)[None]
        assert refusals(hidden_range, context(self.TEXT, {"x": signs}), "mean") == {}


DEPTHS = [
    ("y = MatMul(x, w)", (2, 6), (6, 3), 6),
    ("y = Gemm<transA = 1>(x, w)", (6, 2), (6, 3), 6),
    ("y = Conv(x, w)", (1, 4, 5, 5), (2, 4, 3, 3), 36),
    ("y = Conv<group = 2>(x, w)", (1, 4, 5, 5), (2, 2, 3, 3), 18),
    ("y = ReduceSum(x, axes)", (2, 3, 4), None, 12),
    ("y = ReduceMean<axes = [1]>(x)", (2, 3, 4), None, 3),
    ("y = GlobalAveragePool(x)", (1, 2, 3, 5), None, 15),
    ("y = AveragePool<kernel_shape = [2, 3]>(x)", (1, 1, 4, 4), None, 6),
    ("y = Softmax<axis = 1>(x)", (2, 3, 4), None, 3),
    ("y = Softmax(x)", (2, 3, 4), None, 4),
    ("y = Sum(x, x, x)", (2,), None, 3),
    ("y = Neg(x)", (2,), None, 1),
]


@pytest.mark.parametrize(("node", "shape", "weight", "depth"), DEPTHS, ids=[d[0] for d in DEPTHS])
def test_reduction_depth(node: str, shape: tuple[int, ...], weight: tuple[int, ...] | None, depth: int) -> None:
    dims = ", ".join(map(str, shape))
    text = f"g (float[{dims}] x) => (float y) <int64[2] axes = {{1, 2}}> {{ [op] {node} }}"
    weights = {} if weight is None else {"w": np.ones(weight, np.float32)}
    given = context(text.replace("(float y)", "(y)"), {"x": np.ones(shape, np.float32)}, weights)
    assert reduction_depth(given, 0) == depth


def test_reduction_depth_without_shapes() -> None:
    assert reduction_depth(context("g (float[2, 6] x) => (float[2, 6] y) { y = Softmax(x) }"), 0) is None


def test_an_exponential() -> None:
    text = "g (float[2] x) => (float[2] y) { [plus] y = Softplus(x) }"
    given = context(text, {"x": floats([12, -50])}, opset=22)
    assert "exp(max) reaches 162755" in refusals(hidden_range, given, "plus")["plus"].reason
    assert refusals(hidden_range, context(text, {"x": floats([11, -50])}, opset=22), "plus") == {}
