"""Two different models side by side: values of the same name are compared as soon as both exist.

Both interpreters run in threads of which only one moves at a time, so what has to be kept is only what one side
made before the other got there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from converter.graph import ModelIndex
from converter.numerics.error_sums import ErrorSums, worst
from converter.runtime.formatting import declared_formats
from converter.runtime.interpreter import Interpreter
from converter.runtime.program import Step
from converter.runtime.stream import Stream
from converter.types import ErrorFigures

Match = Callable[[str, Any, Any], None]


class SideBySide:
    """Runs a reference and a candidate on one batch; ``worst`` collects figures by value name over batches."""

    def __init__(self, reference: Interpreter, candidate: Interpreter) -> None:
        self._reference = reference
        self._candidate = candidate
        candidate.strict = False  # a candidate that cannot go on is a verdict
        self._common = _float_names(reference.index) & _float_names(candidate.index)
        self._stored = {
            candidate.index.name_of(v): fmt for v, fmt in enumerate(declared_formats(candidate.index).stored)
        }
        self.worst: dict[str, ErrorFigures] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.candidate_shapes: dict[int, tuple[int, ...]] = {}
        """Of every float array the candidate made, by its value id."""

    def run(self, feeds: Mapping[str, Any], candidate_feeds: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Outputs of both by name (the candidate's None if it failed), and its failure (node, message)."""
        turns = _Turns(self._common)
        sums: dict[str, ErrorSums] = {}

        def match(name: str, expected: Any, got: Any) -> None:
            if isinstance(expected, np.ndarray) and isinstance(got, np.ndarray) and expected.shape == got.shape:
                self.shapes[name] = expected.shape
                sums.setdefault(name, ErrorSums()).add(expected, got, self._stored.get(name))

        spec = declared_formats(self._reference.index)
        ahead = _Producer(turns, lambda tap: self._reference.run(feeds, [spec], [tap]), self._reference.index)
        follower = _Consumer(turns, self._candidate.index, match, self.candidate_shapes)
        ahead.start()
        try:
            mixed = self._candidate.run(candidate_feeds, [declared_formats(self._candidate.index)], [follower])
            failure = mixed.failures[0]
            outputs = mixed.outputs[0]
        finally:
            turns.finish_consumer()
            ahead.join()
        if ahead.error is not None:
            raise ahead.error
        for name, entry in sums.items():
            figures = entry.figures()
            self.worst[name] = worst(self.worst[name], figures) if name in self.worst else figures
        return ahead.outputs, outputs, failure


def _float_names(index: ModelIndex) -> frozenset[str]:
    values = range(len(index.values))
    return frozenset(index.name_of(v) for v in values if index.is_float(v) and v not in index.constants)


class _Turns:
    """Hands the turn between producer and consumer; ``kept`` are produced values not yet asked for."""

    def __init__(self, common: frozenset[str]) -> None:
        self.common = common
        self.kept: dict[str, deque[Any]] = {}
        self.wanted: str | None = None
        self.producer_done = False
        self.consumer_done = False
        self.lock = threading.Condition()

    def put(self, name: str, value: Any) -> None:
        """The producer offers a value and goes on unless the consumer waits for just this one."""
        if name not in self.common:
            return
        with self.lock:
            if self.consumer_done:
                return
            self.kept.setdefault(name, deque()).append(value)
            if self.wanted == name:
                self.wanted = None
                self.lock.notify_all()
                self.lock.wait_for(lambda: self.wanted is not None or self.consumer_done)

    def take(self, name: str) -> Any:
        """The consumer asks for a value and lets the producer run until it is there, or done."""
        with self.lock:
            if not self.kept.get(name):
                self.wanted = name
                self.lock.notify_all()
                self.lock.wait_for(lambda: bool(self.kept.get(name)) or self.producer_done)
                self.wanted = None
            queue = self.kept.get(name)
            return queue.popleft() if queue else None

    def wait_for_turn(self) -> None:
        with self.lock:
            self.lock.wait_for(lambda: self.wanted is not None or self.consumer_done)

    def finish_producer(self) -> None:
        with self.lock:
            self.producer_done = True
            self.lock.notify_all()

    def finish_consumer(self) -> None:
        with self.lock:
            self.consumer_done = True
            self.kept.clear()
            self.lock.notify_all()


class _Producer(threading.Thread):
    """The reference run."""

    def __init__(self, turns: _Turns, action: Callable[[Any], Any], index: ModelIndex) -> None:
        super().__init__(daemon=True)
        self._turns = turns
        self._action = action
        self._index = index
        self.outputs: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        self._turns.wait_for_turn()
        try:
            self.outputs = self._action(self).outputs[0]
        except BaseException as error:
            self.error = error
        finally:
            self._turns.finish_producer()

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """Offer a value of the reference."""
        self._turns.put(self._index.name_of(value_id), values[0])

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Nothing to do before a step."""


class _Consumer:
    """The tap of the candidate: takes the reference's value of the same name."""

    def __init__(self, turns: _Turns, index: ModelIndex, match: Match, shapes: dict[int, tuple[int, ...]]) -> None:
        self._turns = turns
        self._index = index
        self._match = match
        self._shapes = shapes

    def value(self, value_id: int, values: Sequence[Any]) -> None:
        """Compare a value of the candidate with the reference's."""
        if self._index.is_float(value_id) and isinstance(values[0], np.ndarray):
            self._shapes[value_id] = values[0].shape
        name = self._index.name_of(value_id)
        if name in self._turns.common:
            self._match(name, self._turns.take(name), values[0])

    def step(self, run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
        """Nothing to do before a step."""
