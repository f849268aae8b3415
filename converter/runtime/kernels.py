"""Running one plain node: choosing its session, seeding random operators, casts that must round once."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from converter.formats import FP32, format_of
from converter.graph import ModelIndex
from converter.runtime.program import Step, StepKind, widened
from converter.runtime.session import KernelCache, KernelFailure, KernelMissing, Shape, Signature, contiguous

_MAX_SEED = 2**24
"""Seeds are float attributes: integers up to here are exact."""


class StepRunner:
    """Runs steps through cached sessions."""

    def __init__(self, index: ModelIndex, cache: KernelCache, seed: int) -> None:
        self._index = index
        self._cache = cache
        self._seed = seed

    def run(self, step: Step, feeds: Sequence[Any], call: int, narrow: bool) -> list[Any]:
        """Results of a node for its present (and captured) inputs; ``call`` counts its runs in this batch.

        Raises:
            KernelFailure: ONNX Runtime refused the node or its inputs.
        """
        fed: list[Any] = []
        ranks: list[int] = []
        for feed in feeds:
            if isinstance(feed, np.ndarray):
                fed.append(feed if feed.flags.c_contiguous else contiguous(feed))
                ranks.append(feed.ndim)
            else:
                fed.append(feed)
                ranks.append(-1)
        kind = step.kind
        if kind is StepKind.KERNEL and not step.picky:
            kernel = step.kernels.get(tuple(ranks))
            return self._first_run(step, fed, tuple(ranks)) if kernel is None else kernel.run(fed)
        return self._run_special(step, fed, call, narrow)

    def _run_special(self, step: Step, feeds: Sequence[Any], call: int, narrow: bool) -> list[Any]:
        if step.kind is StepKind.CAST:
            direct = self._exact_cast(step, feeds, narrow)
            if direct is not None:
                return [direct]
        if step.kind in (StepKind.RANDOM, StepKind.DROPOUT):
            return self._run_random(step, feeds, call)
        if step.picky:
            return self._run_exact(step, feeds)
        ranks = tuple(f.ndim if isinstance(f, np.ndarray) else -1 for f in feeds)
        kernel = step.kernels.get(ranks)
        return self._first_run(step, feeds, ranks) if kernel is None else kernel.run(feeds)

    def _first_run(self, step: Step, feeds: Sequence[Any], ranks: tuple[int, ...]) -> list[Any]:
        """Find or make the session for these ranks, and keep it with the step when it works."""
        try:
            kernel = self._cache.get(self._signature(step, [None if r < 0 else (None,) * r for r in ranks]))
            results = kernel.run(feeds)
        except KernelFailure as error:
            try:
                results = self._run_exact(step, feeds)
            except KernelFailure:
                raise error from None
            step.picky = True
            return results
        step.kernels[ranks] = kernel
        return results

    def _run_exact(self, step: Step, feeds: Sequence[Any]) -> list[Any]:
        """For operators that want to know shapes, or values of constants, before they run."""
        shapes = [f.shape if isinstance(f, np.ndarray) else None for f in feeds]
        key = tuple(shapes)
        if key in step.kernels:
            return step.kernels[key].run(feeds)
        signature = self._signature(step, shapes)
        try:
            kernel = self._cache.get(signature)
            results = kernel.run(feeds)
        except KernelFailure:
            names = [name for name in step.node.input if name]
            constant = {
                name: feed
                for name, value_id, feed in zip(names, step.present, feeds, strict=False)
                if value_id in self._index.constants and isinstance(feed, np.ndarray)
            }
            if not constant:
                raise
            kernel = self._cache.fresh(signature, constant)
            results = kernel.run(feeds)
        step.kernels[key] = kernel
        return results

    def _signature(self, step: Step, shapes: Sequence[Shape | None], node: onnx.NodeProto | None = None) -> Signature:
        captured = tuple((self._index.name_of(v), widened(self._index.types[v])) for v in step.captured)
        return Signature(
            node=(node or step.node).SerializeToString(deterministic=True),
            opsets=step.opsets,
            types=step.input_types,
            shapes=tuple(shapes[: len(step.input_types)]),
            captured=captured,
        )

    def _run_random(self, step: Step, feeds: Sequence[Any], call: int) -> list[Any]:
        """A random node in a session of its own: generators keep state between runs of one session."""
        node = onnx.NodeProto()
        node.CopyFrom(step.node)
        if not any(a.name == "seed" for a in node.attribute) and self._takes_seed(step):
            drawn = zlib.crc32(f"{self._seed}/{step.label}/{call}".encode()) % _MAX_SEED
            integer = step.kind is StepKind.DROPOUT
            node.attribute.append(onnx.helper.make_attribute("seed", drawn if integer else float(drawn)))
        shapes = [(None,) * f.ndim if isinstance(f, np.ndarray) else None for f in feeds]
        return self._cache.fresh(self._signature(step, shapes, node)).run(feeds)

    def has_kernel(self, step: Step) -> bool:
        """Whether ONNX Runtime has an implementation; nodes it refuses for other reasons count as having one."""
        try:
            self._cache.get(self._signature(step, [None] * len(step.input_types)))
        except KernelMissing:
            return False
        except KernelFailure:
            return True
        return True

    def _takes_seed(self, step: Step) -> bool:
        schema = self._index.schema(step.node_id)
        return schema is not None and "seed" in schema.attributes

    def _exact_cast(self, step: Step, feeds: Sequence[Any], narrow: bool) -> Any | None:
        """Casts without a kernel: FP32 to FP32, and those to a narrow format.

        What becomes narrow is rounded once, when it is stored; ONNX Runtime would go through FP32.
        """
        source = feeds[0]
        if not isinstance(source, np.ndarray):
            return None
        if narrow:
            return source if source.dtype in _ROUNDED_ONCE else None
        wide = format_of(self._index.types[step.outputs[0]]) is FP32
        return source if wide and source.dtype == np.float32 else None


_ROUNDED_ONCE = tuple(np.dtype(t) for t in (np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64))
