"""How one stream of the interpreter stores and rounds values.

A ``FormatSpec`` says, for each value, the narrow format it is stored in (None: FP32 or no float at all), for
each input port whether it reads a rounded copy, and where Clips stand.  The reference stream's spec is what the
file declares; a plan's spec lies over it.  Evaluating a plan on the given graph and evaluating the rewritten
graph are the same arithmetic because both come down to this record.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from converter.formats import NARROW_FORMATS, FloatFormat, format_of
from converter.graph import ModelIndex
from converter.numerics.rounding import round_to, round_wide
from converter.runtime.session import CastRounder, Threads
from converter.types import EmulationProfile, PrecisionPlan

Array = NDArray[Any]


@dataclass(eq=False, slots=True)
class FormatSpec:
    """Formats of one stream (see the module's head)."""

    name: str
    stored: list[FloatFormat | None]
    reads: dict[int, tuple[FloatFormat | None, ...]] = field(default_factory=dict)
    """Node id -> per input position the format of the rounded copy it reads (None: as stored)."""
    leaves: dict[tuple[int, int], FloatFormat] = field(default_factory=dict)
    """(scope id, output position) -> format the value is rounded to when it leaves the body."""
    cast_bounds: dict[int, float] = field(default_factory=dict)
    output_bounds: dict[int, float] = field(default_factory=dict)
    constant_bounds: dict[int, float] = field(default_factory=dict)


def declared_formats(index: ModelIndex, name: str = "reference") -> FormatSpec:
    """The spec of a file as it stands: narrow where its types are narrow."""
    stored: list[FloatFormat | None] = []
    for kind in index.types:
        found = format_of(kind)
        stored.append(found if found is not None and found.name in NARROW_FORMATS else None)
    return FormatSpec(name, stored)


def planned_formats(index: ModelIndex, plan: PrecisionPlan, name: str = "mixed") -> FormatSpec:
    """The spec of a plan over a given graph."""
    spec = declared_formats(index, name)
    for value_id, wanted in plan.stored.items():
        spec.stored[value_id] = NARROW_FORMATS.get(wanted)
    ports: dict[int, dict[int, FloatFormat]] = {}
    for (node_id, position), wanted in plan.reads.items():
        narrow = NARROW_FORMATS.get(wanted)
        value_id = index.inputs[node_id][position]
        if narrow is not None and spec.stored[value_id] is not narrow:
            ports.setdefault(node_id, {})[position] = narrow
    for node_id, found in ports.items():
        spec.reads[node_id] = tuple(found.get(k) for k in range(len(index.inputs[node_id])))
    for (scope_id, position), wanted in plan.leaves.items():
        narrow = NARROW_FORMATS.get(wanted)
        if narrow is not None:
            spec.leaves[scope_id, position] = narrow
    for clamp in plan.clamps:
        bounds = spec.cast_bounds if clamp.place == "cast" else spec.output_bounds
        bounds[clamp.value_id] = clamp.bound
    spec.constant_bounds.update(plan.saturated_constants)
    return spec


class Rounding:
    """Rounds arrays to a format under a profile: the IEEE case through ONNX Runtime's Cast kernel."""

    def __init__(self, profile: EmulationProfile, threads: Threads | None = None) -> None:
        self.profile = profile
        self._threads = threads
        self._fast: dict[str, Callable[[Array], Array]] = {}
        self._plain = profile.overflow == "inf" and not profile.flush_subnormals

    def __call__(self, array: Array, fmt: FloatFormat) -> Array:
        """Values of a float32, float64 or integer array rounded once to ``fmt``, as float32."""
        if array.dtype != np.float32:
            return round_wide(array, fmt, self.profile)
        if not self._plain:
            return round_to(array, fmt, self.profile)
        if fmt.name not in self._fast:
            assert fmt.onnx_type is not None
            self._fast[fmt.name] = CastRounder(fmt.onnx_type, self._threads)
        return self._fast[fmt.name](array)


class ConstantStore:
    """Constants as arrays: mapped from the file, with rounded copies kept under a byte budget.

    Rounded copies are shared by all batches and streams; what does not fit the budget is rounded again when it
    is read.  Pages of large mapped constants are given back after the node that read them (``give_back``), so that
    a model of any size is in memory one node at a time.
    """

    def __init__(self, index: ModelIndex, rounding: Rounding, budget: int = 2**28) -> None:
        self._index = index
        self._rounding = rounding
        self._budget = budget
        self._rounded: dict[tuple[int, str, float | None], Array] = {}
        self._kept: dict[int, Array] = {}
        self._mapped: list[ir.ExternalTensor] = []

    def wide(self, value_id: int) -> Array:
        """The constant's values; narrow ones as float32."""
        found = self._kept.get(value_id)
        if found is not None:
            return found
        tensor = self._index.constants[value_id]
        found = tensor.numpy()
        if format_of(self._index.types[value_id]) is not None and found.dtype != np.float32:
            found = found.astype(np.float32)
        if not found.flags.c_contiguous:
            found = np.ascontiguousarray(found).reshape(found.shape)
        if found.nbytes <= _SMALL_BYTES:
            self._kept[value_id] = found
        elif isinstance(source := getattr(tensor, "source", tensor), ir.ExternalTensor):  # or a narrow copy of one
            self._mapped.append(source)
        elif found.nbytes <= self._budget:  # protobuf copies its bytes out on each access
            self._budget -= found.nbytes
            self._kept[value_id] = found
        return found

    def give_back(self) -> None:
        """Let go of the pages of constants that were mapped since the last call; they are read again when needed."""
        while self._mapped:
            _release_pages(self._mapped.pop())

    def forget(self) -> None:
        """Drop all copies that were kept."""
        self._kept.clear()
        self._rounded.clear()

    def rounded(self, value_id: int, fmt: FloatFormat, bounds: Mapping[int, float]) -> Array:
        """The constant rounded to ``fmt``, limited first where the plan says so."""
        bound = bounds.get(value_id)
        key = (value_id, fmt.name, bound)
        found = self._rounded.get(key)
        if found is None:
            array = self.wide(value_id)
            if bound is not None:
                array = limited(array, bound)
            found = self._rounding(array, fmt)
            if found.nbytes <= self._budget:
                self._budget -= found.nbytes
                self._rounded[key] = found
        return found


_SMALL_BYTES = 2**20


def _release_pages(tensor: ir.ExternalTensor) -> None:
    """Tell the system that a mapped tensor's pages need not stay in this process's memory."""
    mapped = tensor.raw
    if mapped is None or not hasattr(mapped, "madvise"):
        return
    offset = int(tensor.offset or 0)
    start = offset - offset % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, start, offset + int(tensor.nbytes) - start)


def limited(array: Array, bound: float) -> Array:
    """A Clip to ``[-bound, bound]``; NaN stays NaN."""
    return np.asarray(np.clip(array, np.float32(-bound), np.float32(bound)))
