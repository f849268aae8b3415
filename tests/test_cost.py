"""Operations, cast bytes and memory traffic from the shapes that were seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter.cost import cast_bytes, estimated_gain, narrow_share, node_flops
from tests.models.build import indexed
from tests.models.run import plan_with, ranges_of

COUNTED = [
    ("y = MatMul(x, w)", (2, 3), (3, 5), 2 * 2 * 5 * 3),
    ("y = MatMul(x, w)", (4, 2, 3), (3, 5), 2 * 4 * 2 * 5 * 3),
    ("y = Gemm(x, w)", (2, 3), (3, 5), 2 * 2 * 5 * 3),
    ("y = Gemm<transA = 1>(x, w)", (3, 2), (3, 5), 2 * 2 * 5 * 3),
    ("y = Conv(x, w)", (1, 2, 5, 5), (4, 2, 3, 3), 2 * 4 * 9 * 2 * 9),
    ("y = Conv<group = 2>(x, w)", (1, 2, 5, 5), (4, 1, 3, 3), 2 * 4 * 9 * 1 * 9),
    ("y = ConvTranspose(x, w)", (1, 2, 3, 3), (2, 4, 2, 2), 2 * 2 * 9 * 4 * 4),
    ("y = Neg(x)", (2, 3), None, None),
]


@pytest.mark.parametrize(("nodes", "shape", "weight", "flops"), COUNTED, ids=[c[0] + str(c[1]) for c in COUNTED])
@pytest.mark.parametrize("seen", [True, False])
def test_operations(nodes: str, shape: tuple[int, ...], weight: tuple[int, ...] | None, flops: int, seen: bool) -> None:
    dims = ", ".join(map(str, shape))
    weights = {} if weight is None else {"w": np.ones(weight, np.float32)}
    index = indexed(f"g (float[{dims}] x) => (y) {{ {nodes} }}", weights=weights)
    ranges = ranges_of(index, [{"x": np.ones(shape, np.float32)}]) if seen else {}
    found = node_flops(index, ranges)
    if flops is None:
        assert found == {}
    elif seen:
        assert found == {0: flops}
    else:
        assert set(found) == {0}


def test_recurrent_cells() -> None:
    index = indexed("g (float[3, 1, 4] x) => (float[3, 1, 1, 2] y) { y = LSTM<hidden_size = 2>(x, w, r) }",
                    weights={"w": np.ones((1, 8, 4), np.float32), "r": np.ones((1, 8, 2), np.float32)})  # fmt: skip
    ranges = ranges_of(index, [{"x": np.ones((3, 1, 4), np.float32)}])
    assert node_flops(index, ranges) == {0: 2 * 3 * 1 * (32 + 16)}


CHAIN = "g (float[8, 4] x) => (float[8, 4] y) { [p] h = MatMul(x, w)  [q] y = MatMul(h, w) }"
WEIGHTS = {"w": np.eye(4, dtype=np.float32)}


def evidence() -> tuple[Any, Any]:
    index = indexed(CHAIN, weights=WEIGHTS)
    return index, ranges_of(index, [{"x": np.ones((8, 4), np.float32)}])


def test_the_narrow_share() -> None:
    index, ranges = evidence()
    flops = node_flops(index, ranges)
    assert narrow_share(flops, plan_with(index)) == 0.0
    assert narrow_share(flops, plan_with(index, "p")) == 0.5
    assert narrow_share(flops, plan_with(index, "p", "q")) == 1.0
    assert narrow_share({}, plan_with(index)) == 0.0


def test_cast_bytes() -> None:
    index, ranges = evidence()
    assert cast_bytes(plan_with(index), ranges) == 0
    assert cast_bytes(plan_with(index, "p", "q"), ranges) == 2 * 32 * (4 + 2)  # x down, y up
    assert cast_bytes(plan_with(index, "p", "q"), {}) == 0


def test_the_estimated_gain() -> None:
    index, ranges = evidence()
    assert estimated_gain(index, plan_with(index), ranges) == 1.0
    before = 64 + 3 * 128  # the weight, and x, h, y
    after = 32 + 128 + 64 + 64 + 2 * 32 * 6  # weight, x, h and y as the node makes it, two casts
    assert estimated_gain(index, plan_with(index, "p", "q"), ranges) == pytest.approx(before / after)
    narrow_io = plan_with(index, "p", "q", narrow_io=True)
    assert estimated_gain(index, narrow_io, ranges) == pytest.approx(2.0)
