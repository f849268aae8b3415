"""Rule 4, sentinels: what only means "masked" may be limited, an ordinary number may not."""

from __future__ import annotations

import numpy as np
import pytest

from converter.policy.decide import decide
from converter.policy.rules.sentinels import limited_sentinels
from tests.models.build import Array
from tests.models.run import floats
from tests.policy.rules.asking import context

WHERE = """
    g (float[1, 4] x, bool[1, 4] c) => (float[1, 4] y) {{
      s = Where(c, x, m){more}  y = Softmax(s) }}"""


def bounds(text: str, constant: Array, to: str = "fp16") -> dict[str, float]:
    given = context(text, weights={"m": constant}, to=to)
    return {given.index.name_of(v): bound for v, bound in limited_sentinels(given).items()}


LOWEST = np.finfo(np.float32).min


class TestLimited:
    @pytest.mark.parametrize("value", [LOWEST, np.float32(-1e9), np.float32(-1e5), np.float32(1e38)])
    def test_what_where_selects_for_a_softmax(self, value: np.float32) -> None:
        assert bounds(WHERE.format(more=""), np.array(value)) == {"m": 65504 / 2}

    def test_through_data_movement(self) -> None:
        text = WHERE.format(more="  t = Transpose<perm = [1, 0]>(s)").replace("Softmax(s)", "Softmax<axis = 0>(t)")
        assert bounds(text, np.array(LOWEST)) == {"m": 65504 / 2}

    def test_a_bound_of_clip_becomes_the_maximum(self) -> None:
        text = "g (float[4] x) => (float[4] y) { y = Clip(x, , m) }"
        assert bounds(text, np.array(3e38, np.float32)) == {"m": 65504.0}

    def test_an_array_of_zeros_and_one_magnitude(self) -> None:
        text = "g (float[4] x) => (float[1] y) { s = Max(x, m)  y = ReduceMax<keepdims = 1>(s) }"
        assert bounds(text, floats([0, -1e9, 0, -1e9])) == {"m": 65504 / 2}


class TestKept:
    def test_what_is_added_to_scores(self) -> None:
        text = "g (float[1, 4] x) => (float[1, 4] y) { s = Add(x, m)  y = Softmax(s) }"
        assert bounds(text, floats([[0, 0, -1e9, -1e9]])) == {}

    def test_what_reaches_arithmetic(self) -> None:
        assert bounds(WHERE.format(more="").replace("Softmax(s)", "Mul(s, s)"), np.array(LOWEST)) == {}

    def test_what_reaches_an_output(self) -> None:
        assert bounds(WHERE.format(more="").replace("y = Softmax(s)", "y = Identity(s)"), np.array(LOWEST)) == {}

    def test_a_true_infinity(self) -> None:
        assert bounds(WHERE.format(more=""), np.array(-np.inf, np.float32)) == {}

    def test_an_ordinary_large_number(self) -> None:
        assert bounds(WHERE.format(more=""), floats([1e5, 2e5, 3e5, 1])) == {}

    def test_one_that_other_numbers_come_near(self) -> None:
        assert bounds(WHERE.format(more=""), floats([-1e9, 6e4, 0, 0])) == {}

    def test_what_fits(self) -> None:
        assert bounds(WHERE.format(more=""), np.array(-1e4, np.float32)) == {}
        assert bounds(WHERE.format(more=""), np.array(-1e9, np.float32), to="bf16") == {}

    def test_one_that_is_an_output_too(self) -> None:
        text = WHERE.format(more="").replace("=> (float[1, 4] y)", "=> (float[1, 4] y, float m)")
        assert bounds(text, np.array(LOWEST)) == {}


class TestPlan:
    def test_lists_what_narrow_readers_take(self) -> None:
        given = context(WHERE.format(more=""), weights={"m": np.array(LOWEST)})
        plan = decide(given)
        read_narrow = "fp16" in {f for (n, _), f in plan.reads.items() if given.index.nodes[n].op_type == "Where"}
        assert bool(plan.saturated_constants) == read_narrow

    def test_lists_nothing_where_the_reader_stays_fp32(self) -> None:
        from converter.types import PolicyOverride

        given = context(
            WHERE.format(more=""), weights={"m": np.array(LOWEST)}, overrides=(PolicyOverride(op_type="Where"),)
        )
        assert decide(given).saturated_constants == {}
