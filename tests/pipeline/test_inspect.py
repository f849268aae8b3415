"""Inspecting: what a model holds, what would become of it, and which format suits it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from converter import inspect
from converter.errors import OptionError
from converter.inspection import histogram
from converter.types import ConversionRequest
from tests.models.build import indexed, model, value
from tests.models.run import floats, ranges_of
from tests.models.tiny import TINY, Tiny, tiny


@pytest.mark.parametrize("given", TINY, ids=lambda t: t.name)
def test_everything_is_plain_json(given: Tiny, rng: np.random.Generator) -> None:
    found = inspect(given.model(), given.feeds(rng))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert sum(found["formats"].values()) == sum(found["operators"].values())


def test_without_samples_nothing_is_known_about_ranges() -> None:
    found = inspect(tiny("mlp").model())
    assert found["values"] == []
    assert found["recommendation"] == {
        "format": "unknown", "reason": "without samples nothing is known about ranges; pass --samples",
    }  # fmt: skip
    assert {d["format"] for d in found["decisions"]} == {"fp16"}


CHAIN = (
    "g (float[4] x) => (float[4] y) <float k = {0.5}> { a = Mul(x, k)  b = Mul(a, k)  c = Mul(b, k)  y = Mul(c, k) }"
)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(1.0, "fp16"), (1e30, "bf16")],
)
def test_the_format_follows_the_range(scale: float, expected: str) -> None:
    found = inspect(model(CHAIN), {"x": floats([scale, 2 * scale, scale, scale])})
    assert found["recommendation"]["format"] == expected


def test_one_value_beyond_is_mixed() -> None:
    chain = "  ".join(f"v{k + 1} = Mul(v{k}, k)" for k in range(30))
    text = f"g (float[1] v0) => (float[1] v30) <float k = {{0.5}}> {{ {chain} }}"
    found = inspect(model(text), {"v0": floats([1e5])})
    assert found["recommendation"]["format"] == "mixed"
    assert "of 31 values pass its maximum of 65504" in found["recommendation"]["reason"]


def test_a_value_row() -> None:
    found = inspect(model("g (float[4] x) => (float[4] y) { [square] y = Mul(x, x) }"), {"x": floats([1, 2, 1e3, 0])})
    row = next(v for v in found["values"] if v["value"] == "y")
    assert (row["node"], row["op_type"], row["shape"]) == ("square", "Mul", [4])
    assert (row["minimum"], row["maximum"], row["nonfinite"]) == (0.0, 1e6, 0)
    assert row["headroom_bits"]["fp16"] == pytest.approx(np.log2(65504 / 1e6))
    assert row["saturated_share"]["bf16"] == 0
    assert row["saturated_share"]["fp16"] > 0


def test_the_decisions_are_those_of_the_format_asked_for() -> None:
    source = model(CHAIN)
    for to in ("fp16", "bf16"):
        found = inspect(source, {"x": floats([1, 2, 3, 4])}, ConversionRequest(to=to))
        assert found["to"] == to
        assert {d["format"] for d in found["decisions"]} <= {to, "fp32"}


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(OptionError, match=r"option to is 'fp8'; it takes fp16 or bf16"):
        inspect(model(CHAIN), None, ConversionRequest(to="fp8"))


class TestHistogram:
    def seen(self, values: list[float]) -> dict[str, object]:
        index = indexed("g (float[N] x) => (float[N] y) { y = Relu(x) }")
        return histogram(ranges_of(index, [{"x": floats(values)}])[value(index, "x")])

    def test_of_zeros_is_empty(self) -> None:
        assert self.seen([0, 0]) == {"low": None, "high": None, "bars": ""}

    def test_spans_the_exponents_that_were_seen(self) -> None:
        found = self.seen([1.0, 1.5, 2.0, 8.0])
        assert (found["low"], found["high"]) == (0, 3)
        assert len(str(found["bars"])) == 4

    def test_is_never_wider_than_sixteen(self) -> None:
        found = self.seen([2.0**k for k in range(-60, 60)])
        assert 8 <= len(str(found["bars"])) <= 16

    def test_leaves_out_what_is_not_finite(self) -> None:
        assert self.seen([np.inf, 1.0])["high"] == 0
