"""What one conversion, validation or inspection carries along: its settings, progress, times and findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from converter.graph import ModelIndex
from converter.operators import OperatorCatalog
from converter.policy.lookup import NARROW_SUMS
from converter.ranges.batches import Source
from converter.runtime.interpreter import Interpreter
from converter.runtime.session import KernelCache, Threads, contributed_schemas
from converter.types import (
    ConversionRequest,
    Finding,
)

Progress = Callable[[str, int, int], None]


def quiet(stage: str, done: int, total: int) -> None:
    """Progress for nobody."""
    del stage, done, total


@dataclass
class Run:
    """Everything one conversion gathers on its way."""

    request: ConversionRequest
    progress: Progress
    threads: Threads = field(default_factory=Threads)
    breadcrumb: Callable[[str], None] | None = None
    checked_batches: int = 1
    timings: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _kernels: KernelCache | None = None

    def interpreter(self, index: ModelIndex) -> Interpreter:
        """An interpreter for a model under this run's settings."""
        request = self.request
        if self._kernels is None:
            self._kernels = KernelCache(self.threads)
        return Interpreter(
            index, self.threads, request.profile, request.seed, self.breadcrumb, NARROW_SUMS, kernels=self._kernels
        )

    @contextmanager
    def stage(self, name: str, total: int = 1) -> Iterator[Callable[[int], None]]:
        """Time a stage and tell its progress."""
        started = time.perf_counter()
        self.progress(name, 0, total)
        yield lambda done: self.progress(name, done, total)
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - started
        self.progress(name, total, total)


@cache
def catalog() -> OperatorCatalog:
    """Schemas of ONNX and of ONNX Runtime's contributed operators, read once per process."""
    return OperatorCatalog(contributed_schemas())


def listed(samples: Sequence[Source] | Source) -> list[Source]:
    """One batch or several, as a list."""
    single = isinstance(samples, str | Path | Mapping)
    return [samples] if single else list(samples)  # type: ignore[list-item, arg-type]
