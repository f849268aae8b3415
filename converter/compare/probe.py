"""Sending an error at one value through a whole region, beside the FP32 run."""

from __future__ import annotations

from typing import Any

import numpy as np

from converter.compare.regions import Region
from converter.numerics.error_sums import DifferenceNorm
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import Step
from converter.runtime.session import KernelFailure
from converter.runtime.structures import StructureFailure


class Probe:
    """One perturbed value on its way: what differs from the reference, until the region's end is reached."""

    def __init__(self, region: Region, perturbed: Any) -> None:
        self.region = region
        self._changed: dict[int, Any] = {region.value_id: perturbed}
        self._made: dict[int, Any] = {}

    def step(self, run: Interpreter, step: Step, feeds: list[Any]) -> None:
        """Run a node of the region on what is perturbed; ``feeds`` are the reference's."""
        present = step.present
        if step.node_id not in self.region.nodes or not any(v in self._changed for v in present):
            return
        mine = [self._changed.get(v, f) for v, f in zip(present, feeds, strict=False)] + feeds[len(present) :]
        try:
            results = run.execute(step, mine)
        except (KernelFailure, StructureFailure):
            self._changed.clear()
            return
        self._made.update(zip((v for v in step.outputs if v >= 0), results, strict=True))

    def value(self, value_id: int, reference: Any, norms: dict[tuple[int, int], DifferenceNorm]) -> None:
        """Take over a perturbed result, or measure it when it is the region's."""
        made = self._made.pop(value_id, None)
        if made is None:
            return
        same = isinstance(made, np.ndarray) and isinstance(reference, np.ndarray) and made.shape == reference.shape
        if same and reference.dtype.kind == "f":
            self._changed[value_id] = made
            norms.setdefault((self.region.value_id, value_id), DifferenceNorm()).add(reference, made)
