"""Applying passes to a graph whose plan is made by hand, and drawing what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from converter.graph import ModelIndex
from converter.rewrite.base import Draft, Pass
from converter.rewrite.check import check_structure, interface, narrowed
from converter.types import PrecisionPlan
from tests.models.build import drawn, indexed, value
from tests.models.run import clamp, plan_with


def draft_of(
    text: str,
    *narrow: str,
    to: str = "fp16",
    narrow_io: bool = False,
    opset: int = 17,
    clamps: Sequence[tuple[str, str]] = (),
    saturated: Mapping[str, float] | None = None,
) -> Draft:
    """A draft of a graph in which just these nodes are to be narrow."""
    index: ModelIndex = indexed(text, opset)
    plan: PrecisionPlan = plan_with(
        index,
        *narrow,
        to=to,
        narrow_io=narrow_io,
        clamps=[clamp(index, name, place) for name, place in clamps],
        saturated={value(index, name): bound for name, bound in (saturated or {}).items()},
    )
    return Draft(index, plan)


def apply(draft: Draft, *passes: Pass, narrow_io: bool = False) -> str:
    """Apply passes with the checks that follow each, and draw the graph."""
    given = interface(draft.model)
    if narrow_io:
        given = narrowed(given, draft.fmt.type_string)
    for step in passes:
        step.apply(draft)
        step.ensures(draft)
        check_structure(draft.model, given, step.name)
    return drawn(draft.model)
