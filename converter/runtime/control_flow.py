"""If, Loop, Scan and SequenceMap, walked in Python with proper scopes.

Value ids are unique over all scopes, so a body simply sees the outer values of its stream.  Streams of one call
run a body together as long as they agree to enter it; whoever disagrees goes its own way and leaves a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from converter.runtime.program import Step, StepKind
from converter.runtime.session import KernelFailure
from converter.runtime.stream import Stream

if TYPE_CHECKING:
    from converter.runtime.interpreter import Interpreter


def run_if(run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
    """Each group of streams with the same condition runs its branch."""
    groups: dict[bool, list[Stream]] = {}
    for stream in streams:
        groups.setdefault(bool(np.asarray(stream.load(step.inputs[0])).reshape(-1)[0]), []).append(stream)
    if len(groups) > 1:
        run.diverge(step, "the FP32 and the narrow run take different branches of this If")
    bodies = run.index.bodies[step.node_id]
    for condition, group in groups.items():
        scope_id = bodies["then_branch" if condition else "else_branch"]
        run.run_scope(scope_id, group)
        for stream in _alive(group):
            for position, value_id in enumerate(step.outputs):
                if value_id >= 0:
                    stream.store(value_id, run.leave(stream, scope_id, position))
        run.free_scope(scope_id, group)


class _LoopState:
    """One stream inside a Loop: its trip count, condition, carried states and collected scan outputs."""

    def __init__(self, stream: Stream, trips: int | None, condition: bool, states: list[Any], scans: int) -> None:
        self.stream = stream
        self.trips = trips
        self.condition = condition
        self.states = states
        self.collected: list[list[Any]] = [[] for _ in range(scans)]

    def goes_on(self, iteration: int) -> bool:
        alive = self.stream.failure is None
        return alive and self.condition and (self.trips is None or iteration < self.trips)


def run_loop(run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
    """A Loop: trip count and condition, carried states, scan outputs stacked on a new first axis."""
    scope_id = run.index.bodies[step.node_id]["body"]
    graph = run.index.scopes[scope_id].graph
    inputs = [run.index.id_of(v) for v in graph.inputs]
    carried = len(step.inputs) - 2
    loops = [_enter_loop(step, s, len(graph.outputs) - 1 - carried) for s in streams]
    iteration = 0
    while active := [loop for loop in loops if loop.goes_on(iteration)]:
        if len(active) != len([loop for loop in loops if loop.stream.failure is None]):
            run.diverge(step, f"the FP32 and the narrow run leave this Loop after different counts (at {iteration})")
        for loop in active:
            entering = [np.array(iteration, np.int64), np.array(loop.condition), *loop.states]
            _set_inputs(loop.stream, inputs, entering)
        group = [loop.stream for loop in active]
        _announce(run, inputs, group)
        run.run_scope(scope_id, group)
        for loop in active:
            if loop.stream.failure is None:
                _take_iteration(run, loop, scope_id, carried)
        run.free_scope(scope_id, group)
        iteration += 1

    def leave(loop: _LoopState) -> None:
        stacked = [_stack(items, graph.outputs[1 + carried + k]) for k, items in enumerate(loop.collected)]
        _store_outputs(loop.stream, step, [*loop.states, *stacked])

    for loop in loops:
        if loop.stream.failure is None:
            run.guarded(step, [loop.stream], lambda ended=loop: leave(ended))  # type: ignore[misc]


def _enter_loop(step: Step, stream: Stream, scans: int) -> _LoopState:
    trips = None if step.inputs[0] < 0 else int(np.asarray(stream.load(step.inputs[0])).reshape(-1)[0])
    condition = step.inputs[1] < 0 or bool(np.asarray(stream.load(step.inputs[1])).reshape(-1)[0])
    reads = stream.spec.reads.get(step.node_id)
    states = [stream.load_as(v, reads[2 + k] if reads else None) for k, v in enumerate(step.inputs[2:])]
    return _LoopState(stream, trips, condition, states, scans)


def _take_iteration(run: Interpreter, loop: _LoopState, scope_id: int, carried: int) -> None:
    loop.condition = bool(np.asarray(run.leave(loop.stream, scope_id, 0)).reshape(-1)[0])
    loop.states = [run.leave(loop.stream, scope_id, 1 + k) for k in range(carried)]
    for k, items in enumerate(loop.collected):
        items.append(run.leave(loop.stream, scope_id, 1 + carried + k))


_States = dict[int, list[Any]]
"""Values of the carried states by the position of a stream."""
_Collected = dict[int, list[list[Any]]]
"""Per scan input or output the values of all iterations, by the position of a stream."""


def run_scan(run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
    """A Scan; the operator's first version (opset 8) has a batch axis and sequence lengths in front."""
    if run.index.version("") < 9:
        _run_batched_scan(run, step, streams)
        return
    count = _ints(run, step, "num_scan_inputs", [0])[0]
    states = len(step.inputs) - count
    axes = _ints(run, step, "scan_input_axes", [0] * count)
    directions = _ints(run, step, "scan_input_directions", [0] * count)
    for stream_group in _groups_by_length(run, step, streams, states, axes):
        sequences = {
            s.position: [_slices(_read(s, step, states + k), axes[k], directions[k] == 1) for k in range(count)]
            for s in stream_group
        }
        initial = {s.position: [_read(s, step, k) for k in range(states)] for s in stream_group}
        finals, collected = _scan(run, step, stream_group, initial, sequences)

        def leave(stream: Stream, finals: _States = finals, collected: _Collected = collected) -> None:
            outputs = [_join(run, step, k, items) for k, items in enumerate(collected[stream.position])]
            _store_outputs(stream, step, [*finals[stream.position], *outputs])

        for stream in _alive(stream_group):
            run.guarded(step, [stream], lambda ended=stream: leave(ended))  # type: ignore[misc]


def _scan(
    run: Interpreter,
    step: Step,
    streams: Sequence[Stream],
    states: _States,
    sequences: _Collected,
) -> tuple[_States, _Collected]:
    """The recurrence itself: final states and per-iteration outputs by stream."""
    scope_id = run.index.bodies[step.node_id]["body"]
    graph = run.index.scopes[scope_id].graph
    inputs = [run.index.id_of(v) for v in graph.inputs]
    carried = len(next(iter(states.values())))
    collected: _Collected = {s.position: [[] for _ in range(len(graph.outputs) - carried)] for s in streams}
    length = len(next(iter(sequences.values()))[0])
    for iteration in range(length):
        group = _alive(streams)
        for stream in group:
            entering = states[stream.position] + [items[iteration] for items in sequences[stream.position]]
            _set_inputs(stream, inputs, entering)
        _announce(run, inputs, group)
        run.run_scope(scope_id, group)
        for stream in _alive(group):
            states[stream.position] = [run.leave(stream, scope_id, k) for k in range(carried)]
            for k, items in enumerate(collected[stream.position]):
                items.append(run.leave(stream, scope_id, carried + k))
        run.free_scope(scope_id, group)
    return states, collected


def _groups_by_length(
    run: Interpreter, step: Step, streams: Sequence[Stream], states: int, axes: Sequence[int]
) -> list[list[Stream]]:
    groups: dict[int, list[Stream]] = {}

    def join(stream: Stream) -> None:
        lengths = [np.shape(_read(stream, step, states + k))[axis] for k, axis in enumerate(axes)]
        if len(set(lengths)) != 1:
            raise KernelFailure(f"the scanned sequences have different lengths {lengths}")
        groups.setdefault(lengths[0], []).append(stream)

    for stream in streams:
        run.guarded(step, [stream], lambda s=stream: join(s))  # type: ignore[misc]
    if len(groups) > 1:
        run.diverge(step, "the FP32 and the narrow run scan sequences of different lengths")
    return list(groups.values())


def _run_batched_scan(run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
    """Scan of opset 8: every input has a batch axis in front; scanned axis 1; outputs padded to the longest."""
    count = _ints(run, step, "num_scan_inputs", [0])[0]
    states = len(step.inputs) - 1 - count
    directions = _ints(run, step, "directions", [0] * count)
    batch = np.shape(_read(streams[0], step, 1))[0]
    parts: dict[int, list[list[Any]]] = {s.position: [] for s in streams}
    longest = np.shape(_read(streams[0], step, 1 + states))[1]
    for row in range(batch):
        length = longest
        if step.inputs[0] >= 0:
            length = int(np.asarray(streams[0].load(step.inputs[0]))[row])
        initial = {s.position: [_read(s, step, 1 + k)[row] for k in range(states)] for s in streams}
        sequences = {
            s.position: [
                _slices(_read(s, step, 1 + states + k)[row][:length], 0, directions[k] == 1) for k in range(count)
            ]
            for s in streams
        }
        finals, collected = _scan(run, step, streams, initial, sequences)

        def leave(stream: Stream, finals: _States = finals, collected: _Collected = collected) -> None:
            stacked = [_padded(_stacked(items), longest) for items in collected[stream.position]]
            parts[stream.position].append([*finals[stream.position], *stacked])

        for stream in _alive(streams):
            run.guarded(step, [stream], lambda ended=stream: leave(ended))  # type: ignore[misc]
    for stream in _alive(streams):
        _store_outputs(stream, step, [np.stack(column) for column in zip(*parts[stream.position], strict=True)])


def _padded(array: Any, length: int) -> Any:
    missing = length - array.shape[0]
    return array if missing == 0 else np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def run_sequence_map(run: Interpreter, step: Step, streams: Sequence[Stream]) -> None:
    """SequenceMap: the body once per element; inputs that are no sequences are passed whole."""
    scope_id = run.index.bodies[step.node_id]["body"]
    graph = run.index.scopes[scope_id].graph
    inputs = [run.index.id_of(v) for v in graph.inputs]
    arguments = {s.position: [_read(s, step, k) for k in range(len(step.inputs))] for s in streams}
    results: _Collected = {s.position: [[] for _ in graph.outputs] for s in streams}
    for stream in streams:
        run.guarded(step, [stream], lambda s=stream: _check_lengths(arguments[s.position]))  # type: ignore[misc]
    length = max((len(arguments[s.position][0]) for s in _alive(streams)), default=0)
    for iteration in range(length):
        group = [s for s in _alive(streams) if iteration < len(arguments[s.position][0])]
        for stream in group:
            entering = [a[iteration] if isinstance(a, list) else a for a in arguments[stream.position]]
            _set_inputs(stream, inputs, entering)
        _announce(run, inputs, group)
        run.run_scope(scope_id, group)
        for stream in _alive(group):
            for k, items in enumerate(results[stream.position]):
                items.append(run.leave(stream, scope_id, k))
        run.free_scope(scope_id, group)
    for stream in _alive(streams):
        _store_outputs(stream, step, results[stream.position])


def _check_lengths(arguments: list[Any]) -> None:
    """Further sequences may be longer than the first, not shorter."""
    lengths = [len(a) for a in arguments if isinstance(a, list)]
    if min(lengths) < lengths[0]:
        raise KernelFailure(f"the mapped sequences have different lengths {lengths}")


RUNNERS: dict[StepKind, Callable[[Interpreter, Step, Sequence[Stream]], None]] = {
    StepKind.IF: run_if,
    StepKind.LOOP: run_loop,
    StepKind.SCAN: run_scan,
    StepKind.SEQUENCE_MAP: run_sequence_map,
}


def _alive(streams: Sequence[Stream]) -> list[Stream]:
    return [s for s in streams if s.failure is None]


def _read(stream: Stream, step: Step, position: int) -> Any:
    reads = stream.spec.reads.get(step.node_id)
    return stream.load_as(step.inputs[position], reads[position] if reads else None)


def _set_inputs(stream: Stream, inputs: Sequence[int], values: Sequence[Any]) -> None:
    for value_id, value in zip(inputs, values, strict=False):
        stream.store(value_id, value)


def _announce(run: Interpreter, inputs: Sequence[int], streams: Sequence[Stream]) -> None:
    for value_id in inputs:
        if run.index.is_float(value_id):
            run.announce(value_id, streams)


def _store_outputs(stream: Stream, step: Step, values: Sequence[Any]) -> None:
    for value_id, value in zip(step.outputs, values, strict=False):
        if value_id >= 0:
            stream.store(value_id, value)


def _ints(run: Interpreter, step: Step, name: str, default: list[int]) -> list[int]:
    attribute = run.index.nodes[step.node_id].attributes.get(name)
    if attribute is None:
        return default
    return [attribute.as_int()] if attribute.type == ir.AttributeType.INT else list(attribute.as_ints())


def _slices(array: Any, axis: int, backwards: bool) -> list[Any]:
    moved = np.moveaxis(array, axis, 0)
    order = reversed(range(moved.shape[0])) if backwards else range(moved.shape[0])
    return [np.ascontiguousarray(moved[k]).reshape(moved.shape[1:]) for k in order]


def _join(run: Interpreter, step: Step, output: int, items: list[Any]) -> Any:
    """Stack the per-iteration values of one scan output along its axis and direction."""
    scans = len(run.index.scopes[run.index.bodies[step.node_id]["body"]].graph.outputs)
    carried = len(step.inputs) - _ints(run, step, "num_scan_inputs", [0])[0]
    axis = _ints(run, step, "scan_output_axes", [0] * (scans - carried))[output]
    backwards = _ints(run, step, "scan_output_directions", [0] * (scans - carried))[output] == 1
    return np.ascontiguousarray(_stacked(items[::-1] if backwards else items, axis))


def _stacked(items: list[Any], axis: int = 0) -> Any:
    if not items:
        raise KernelFailure("the scanned sequence is empty")
    shapes = list(dict.fromkeys(np.shape(item) for item in items))
    if len(shapes) > 1:
        raise KernelFailure(f"iterations make values of different shapes, {list(shapes[0])} and {list(shapes[1])}")
    return np.stack(items, axis=axis)


def _stack(items: list[Any], value: ir.Value) -> Any:
    """The scan output of a Loop; without iterations an empty array of the declared type."""
    if items:
        return _stacked(items)
    shape = value.shape if value.shape is not None else ()
    dims = [d if isinstance(d, int) else 0 for d in shape]
    dtype = value.type.dtype if value.type is not None else ir.DataType.FLOAT
    narrow = dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return np.zeros((0, *dims), np.float32 if narrow else dtype.numpy())
