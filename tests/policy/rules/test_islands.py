"""Rule 10, no islands: nothing is cast down and up again between two wide nodes."""

from __future__ import annotations

import pytest

from converter.policy.rules.islands import islands
from tests.policy.rules.asking import context, refusals


def refused(text: str, *narrow: str) -> set[str]:
    return set(refusals(islands, context(text), *narrow))


def graph(nodes: str, outputs: str = "float[2, 2] y") -> str:
    return f"g (float[2, 2] x) => ({outputs}) <float[2] k = {{1, 2}}> {{ {nodes} }}"


class TestBetweenWideNodes:
    def test_data_movement(self) -> None:
        text = graph("[a] a = Exp(x)  [m] t = Transpose(a)  [n] u = Transpose(t)  [b] y = Exp(u)")
        assert refused(text, "m", "n") == {"m", "n"}

    def test_a_following_node(self) -> None:
        text = graph("[a] a = Exp(x)  [f] h = Sigmoid(a)  [b] y = Exp(h)")
        assert refused(text, "f") == {"f"}

    def test_constants_hold_nothing_back(self) -> None:
        text = graph("[a] a = Exp(x)  [f] h = Mul(a, k)  [b] y = Exp(h)")
        assert refused(text, "f") == {"f"}

    def test_a_run_of_following_nodes_is_left(self) -> None:
        text = graph("[a] a = Exp(x)  [f] h = Sigmoid(a)  [g] i = Sigmoid(h)  [b] y = Exp(i)")
        assert refused(text, "f", "g") == set()

    def test_what_becomes_an_island_when_another_goes(self) -> None:
        text = graph("[a] a = Exp(x)  [m] t = Transpose(a)  [f] h = Sigmoid(t)  [b] y = Exp(h)")
        """A run of movement and arithmetic is left; without its arithmetic the movement goes too."""
        assert refused(text, "m", "f") == set()
        assert refused(text, "m") == {"m"}


class TestNotAlone:
    @pytest.mark.parametrize(
        ("nodes", "narrow"),
        [("[m] t = Transpose(x)  [b] y = Exp(t)", ("m",)),
         ("[a] a = Exp(x)  [m] y = Transpose(a)", ("m",)),
         ("[a] a = Exp(x)  [m] t = Transpose(a)  [p] y = MatMul(t, t)", ("m", "p")),
         ("[p] a = MatMul(x, x)  [m] t = Transpose(a)  [b] y = Exp(t)", ("p", "m")),
         ("[a] a = Exp(x)  [f] h = Sigmoid(a)  [b] i = Exp(h)  [p] q = MatMul(h, h)  y = Add(i, q)", ("f", "p"))],
        ids=["from an input", "to an output", "to a product", "from a product", "one narrow reader"],
    )  # fmt: skip
    def test_stays_narrow(self, nodes: str, narrow: tuple[str, ...]) -> None:
        assert refused(graph(nodes), *narrow) == set()


def test_reasons() -> None:
    text = graph("[a] a = Exp(x)  [m] t = Transpose(a)  [b] i = Exp(t)  [f] h = Sigmoid(i)  [c] y = Exp(h)")
    found = refusals(islands, context(text), "m", "f")
    assert found["m"].reason == (
        "moves or selects values between FP32 nodes only; narrowing here would cast down and up again"
    )
    assert found["f"].reason == "all its neighbours are FP32 nodes; narrowing it alone would cast down and up again"
