"""Random graphs under all conformance checks; the test files beside this name the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, reject, seed, settings
from hypothesis import strategies as st

from tests.conformance.emulation import Runnable
from tests.conformance.examine import examine

from .graphs import generate

T = TypeVar("T")
GRAPHS = 1000
"""Random graphs per format."""
PARTS = 10
"""They come in parts with a seed of their own, so that a failure is found again without the others."""


class _Drawn:
    """Choices from hypothesis, so that a failing graph shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)] if len(options) > 1 else options[0]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) < percent


@dataclass(frozen=True)
class RandomModel:
    """A random model with a batch, shown as ONNX text."""

    model: onnx.ModelProto
    feeds: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{onnx.printer.to_text(self.model)}\nfeeds {dict(self.feeds)}"


@st.composite
def random_models(draw: st.DrawFn) -> RandomModel:
    """Models that ONNX accepts and ONNX Runtime runs."""
    model, feeds = generate(_Drawn(draw))
    try:
        onnx.checker.check_model(model, full_check=True)
        Runnable(model).run(feeds)
    except Exception:
        reject()
    return RandomModel(model, feeds)


class RandomGraphs:
    """Every random graph that ONNX Runtime runs converts to a valid one, and the verdict on it is true."""

    to: ClassVar[str]

    @pytest.mark.parametrize("part", range(PARTS))
    def test_random_graphs(self, part: int) -> None:
        print(f"hypothesis seed {part}")
        settled = settings(
            max_examples=GRAPHS // PARTS,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        seed(part)(settled(given(random_models())(self._converts)))()

    def _converts(self, found: RandomModel) -> None:
        problems = examine(found.model, found.feeds, self.to).problems
        assert not problems, "\n".join(problems)
