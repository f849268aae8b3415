"""Random models: blocks wired at random, in random scopes, with everything that makes converters stumble.

A graph is built from draws of a ``Draw`` (hypothesis, or a seeded generator).  Names collide between scopes that do
not see each other, nodes are unnamed, initializers are shared, outputs may be inputs or initializers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from .blocks import FIXED, OPSETS, Block, fitting

T = TypeVar("T")
FLOAT = TensorProto.FLOAT
_TYPES = {"float32": FLOAT, "int64": TensorProto.INT64, "bool": TensorProto.BOOL, "int32": TensorProto.INT32,
          "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}  # fmt: skip
_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3,), (2, 3), (1, 4), (3, 1, 2), (2, 0), (1, 2, 3, 3))
_STEMS = ("h", "x_fp16", "a/b", "t.0", "ü", "out_bf16", "m:0")
_DOMAIN = "local"


class Draw(Protocol):
    """Where choices come from."""

    def integer(self, low: int, high: int) -> int:
        """An integer of [low, high]."""

    def pick(self, options: Sequence[T]) -> T:
        """One of several."""

    def chance(self, percent: int) -> bool:
        """True in about so many percent of the draws."""


@dataclass(frozen=True, slots=True)
class Value:
    """A float value a node may read."""

    name: str
    shape: tuple[int, ...]


@dataclass
class Scope:
    """One graph under construction: what it can see, what it holds."""

    taken: set[str]
    visible: list[Value]
    hidden: set[str] = field(default_factory=set)
    """Names that bodies of this scope use: onnx's inference confuses a later value of the same name with them."""
    nodes: list[NodeProto] = field(default_factory=list)
    initializers: list[TensorProto] = field(default_factory=list)
    outputs: list[ValueInfoProto] = field(default_factory=list)
    function: bool = False

    def fresh(self, draw: Draw, stem: str | None = None) -> str:
        """A name nobody who can see it uses; other scopes may."""
        base = stem or draw.pick(_STEMS)
        name, count = base, 1
        while name in self.taken | self.hidden:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name


def info(name: str, shape: Sequence[int], element: int = FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, list(shape))


class Generator:
    """Builds one model; ``feeds`` are its batch."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.opset = draw.pick(OPSETS)
        self.rng = np.random.default_rng(draw.integer(0, 2**16))
        self.functions: list[FunctionProto] = []
        self.node_names: set[str] = set()
        self.domains: dict[str, int] = {"": self.opset}
        self.feeds: dict[str, Any] = {}
        self.inputs: list[ValueInfoProto] = []
        self.pool: dict[tuple[int, ...], str] = {}

    def model(self) -> ModelProto:
        """The whole model."""
        draw, scope = self.draw, Scope(set(), [])
        for _ in range(draw.integer(1, 3)):
            self._input(scope, draw.pick(_SHAPES))
        self._fill(scope, draw.integer(1, 5), depth=0)
        self._outputs(scope)
        graph = helper.make_graph(scope.nodes, "random", self.inputs, scope.outputs, scope.initializers)
        imports = [helper.make_opsetid(domain, version) for domain, version in self.domains.items()]
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions)
        model.ir_version = 8 if self.opset < 21 else 10
        return model

    # ------------------------------------------------------------------------------------------- values

    def _input(self, scope: Scope, shape: tuple[int, ...]) -> Value:
        value = Value(scope.fresh(self.draw), shape)
        self.inputs.append(info(value.name, shape))
        self.feeds[value.name] = self._array(shape)
        if self.draw.chance(10):  # an overridable initializer
            scope.initializers.append(numpy_helper.from_array(self._array(shape), value.name))
            if self.draw.chance(50):
                del self.feeds[value.name]
        scope.visible.append(value)
        return value

    def _array(self, shape: tuple[int, ...]) -> Any:
        scale = self.draw.pick((1.0, 1.0, 1.0, 0.01, 30.0, 1e-6, 3e4, 1e6))
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def constant(self, scope: Scope, array: Any) -> str:
        """A constant of a scope: an initializer, or a Constant node in one of its spellings."""
        draw = self.draw
        if not scope.function and draw.chance(60):
            name = scope.fresh(draw, "w")
            scope.initializers.append(numpy_helper.from_array(array, name))
            return name
        name = scope.fresh(draw, "c")
        if array.dtype == np.float32 and array.ndim == 0 and draw.chance(50):
            attributes: dict[str, Any] = {"value_float": float(array)}
        elif array.dtype == np.float32 and array.ndim == 1 and array.size and draw.chance(50):
            attributes = {"value_floats": array.tolist()}
        else:
            attributes = {"value": numpy_helper.from_array(array)}
        if self.opset < 12 and "value" not in attributes:
            attributes = {"value": numpy_helper.from_array(array)}
        self._node(scope, "Constant", [], [name], **attributes)
        return name

    def weight(self, scope: Scope, array: Any) -> str:
        """A float constant, shared with an earlier reader of that shape about every other time."""
        seen = [v for v in scope.visible if v.shape == array.shape and v.name.startswith(("w", "c"))]
        if seen and self.draw.chance(50):
            return self.draw.pick(seen).name
        name = self.constant(scope, array)
        if array.dtype == np.float32:
            scope.visible.append(Value(name, array.shape))
        return name

    def _node(self, scope: Scope, op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> NodeProto:
        domain = attributes.pop("domain", "")
        node = helper.make_node(op_type, inputs, outputs, domain=domain, **attributes)
        self._name(node)
        scope.nodes.append(node)
        return node

    def _name(self, node: NodeProto) -> None:
        """A unique node name in about half the nodes."""
        node.name = ""
        if self.draw.chance(50):
            name = f"{self.draw.pick(_STEMS)}{len(self.node_names)}"
            self.node_names.add(name)
            node.name = name

    def fit(self, scope: Scope, value: Value, shape: tuple[int, ...]) -> str:
        """A value of the shape: mostly one that has it, else the given one cut, or filled up with numbers."""
        same = [v for v in scope.visible if v.shape == shape]
        if same and self.draw.chance(60):
            return self.draw.pick(same).name
        if value.shape == shape:
            return value.name
        size, wanted = int(np.prod(value.shape)), int(np.prod(shape))
        if size == 0 or wanted == 0:
            return self.weight(scope, self._array(shape))
        name = value.name
        if size != wanted:
            name = self._movement(scope, "Reshape", name, self._ints([-1]))
            filler = self._array((wanted,))
            joined = scope.fresh(self.draw)
            self._node(scope, "Concat", [name, self.weight(scope, filler)], [joined], axis=0)
            bounds = [self.constant(scope, self._ints([k])) for k in (0, wanted)]
            name = scope.fresh(self.draw)
            self._node(scope, "Slice", [joined, *bounds], [name])
        return self._movement(scope, "Reshape", name, self._ints(list(shape)))

    def _ints(self, values: list[int]) -> Any:
        return np.array(values, np.int64)

    def _movement(self, scope: Scope, op_type: str, name: str, argument: Any) -> str:
        made = scope.fresh(self.draw)
        self._node(scope, op_type, [name, self.constant(scope, argument)], [made])
        return made

    # -------------------------------------------------------------------------------------------- nodes

    def _fill(self, scope: Scope, count: int, depth: int) -> None:
        makers: list[Callable[[Scope, int], None]] = [self._block] * 7
        if depth < 2:
            makers += [self._if, self._loop, self._call] + ([self._scan] if self.opset >= 9 else [])
        for _ in range(count):
            self.draw.pick(makers)(scope, depth)

    def _block(self, scope: Scope, depth: int) -> None:
        """One operator, some of whose float inputs come from the graph."""
        block = self.draw.pick(self.draw.pick(fitting(self.opset)))
        names = [p for p in block.node.input if p]
        given: dict[str, str] = {}
        free = [n for n in names if block.feeds[n].dtype == np.float32 and n not in FIXED]
        for name in dict.fromkeys(names):
            array = block.feeds[name]
            if name in free and scope.visible and (self.draw.chance(70) or name == free[0]):
                given[name] = self.fit(scope, self.draw.pick(scope.visible), array.shape)
            elif name in free:
                given[name] = self.weight(scope, array)
            else:
                given[name] = self.constant(scope, array)
        self._place(scope, block, given)

    def _place(self, scope: Scope, block: Block, given: Mapping[str, str]) -> None:
        node = NodeProto()
        node.CopyFrom(block.node)
        self.domains.setdefault(node.domain, block.domain_version)
        self._name(node)
        inputs = [given[n] if n else "" for n in block.node.input]
        outputs = [scope.fresh(self.draw) if n else "" for n in block.node.output]
        del node.input[:], node.output[:]
        node.input.extend(inputs)
        node.output.extend(outputs)
        scope.nodes.append(node)
        for name, array in zip([o for o in outputs if o], block.makes, strict=True):
            if array.dtype == np.float32 and block.consumable:
                scope.visible.append(Value(name, array.shape))
            elif not scope.function and self.draw.chance(40):
                dims: list[Any] = list(array.shape) if block.consumable else [None] * array.ndim
                scope.outputs.append(helper.make_tensor_value_info(name, _TYPES[array.dtype.name], dims))

    def _inner(self, scope: Scope) -> Scope:
        return Scope(set(scope.taken), list(scope.visible), function=False)

    def _hand_out(self, inner: Scope, shape: tuple[int, ...]) -> ValueInfoProto:
        """A float of the shape that a body makes: computed, captured, or an initializer of its own."""
        name = inner.fresh(self.draw)
        if self.draw.chance(10):
            inner.initializers.append(numpy_helper.from_array(self._array(shape), name))
        else:
            source = self.fit(inner, self.draw.pick(inner.visible), shape)
            self._node(inner, "Identity", [source], [name])
        return info(name, shape)

    def _graph(self, inner: Scope, inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto]) -> GraphProto:
        name = f"body{self.draw.integer(0, 3)}"
        return helper.make_graph(inner.nodes, name, list(inputs), list(outputs), inner.initializers)

    def _leave(self, scope: Scope, inner: Scope) -> None:
        scope.hidden |= inner.taken - scope.taken | inner.hidden

    def _truth(self, scope: Scope) -> str:
        """A boolean scalar: constant, or the outcome of a comparison of floats."""
        if self.draw.chance(50) or not scope.visible:
            return self.constant(scope, np.array(self.draw.chance(50)))
        flat = self.fit(scope, self.draw.pick(scope.visible), (1,))
        name = scope.fresh(self.draw)
        self._node(scope, "Less", [flat, self.constant(scope, np.array([0.3], np.float32))], [name])
        return name

    def _if(self, scope: Scope, depth: int) -> None:
        shapes = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(1, 2))]
        condition = self._truth(scope)
        branches = {}
        for branch in ("then_branch", "else_branch"):
            inner = self._inner(scope)
            self._fill(inner, self.draw.integer(0, 2), depth + 1)
            branches[branch] = self._graph(inner, [], [self._hand_out(inner, s) for s in shapes])
            self._leave(scope, inner)
        self._structured(scope, "If", [condition], shapes, **branches)

    def _structured(
        self, scope: Scope, op_type: str, inputs: list[str], shapes: Sequence[tuple[int, ...]], **attributes: Any
    ) -> None:
        made = [Value(scope.fresh(self.draw), shape) for shape in shapes]
        self._node(scope, op_type, inputs, [v.name for v in made], **attributes)
        scope.visible.extend(made)

    def _body_inputs(self, inner: Scope, shapes: Sequence[tuple[int, ...]]) -> list[ValueInfoProto]:
        formal = [Value(inner.fresh(self.draw), s) for s in shapes]
        inner.visible.extend(formal)
        return [info(v.name, v.shape) for v in formal]

    def _loop(self, scope: Scope, depth: int) -> None:
        trips = self.draw.integer(0, 3)
        states = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(0, 2))]
        scans = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(0 if states else 1, 1))]
        inputs = [self.constant(scope, np.array(trips, np.int64)), self.draw.pick(("", self._truth(scope)))]
        inputs += [self.fit(scope, self.draw.pick(scope.visible), s) for s in states]
        inner = self._inner(scope)
        counter, going, goes_on = (inner.fresh(self.draw) for _ in range(3))
        formal = [info(counter, (), TensorProto.INT64), info(going, (), TensorProto.BOOL)]
        formal += self._body_inputs(inner, states)
        self._fill(inner, self.draw.integer(0, 2), depth + 1)
        self._node(inner, "Identity", [going], [goes_on])
        outputs = [info(goes_on, (), TensorProto.BOOL)]
        outputs += [self._hand_out(inner, s) for s in (*states, *scans)]
        condition = inputs[1] == "" or None
        body = self._graph(inner, formal, outputs)
        self._leave(scope, inner)
        # How often the body runs may depend on a comparison: what it stacks is no one's input.
        made = [Value(scope.fresh(self.draw), s) for s in states]
        stacked = [scope.fresh(self.draw) for _ in scans]
        self._node(scope, "Loop", inputs, [*(v.name for v in made), *stacked], body=body)
        scope.visible.extend(made)
        for name, shape in zip(stacked, scans, strict=True):
            if condition and trips:
                scope.visible.append(Value(name, (trips, *shape)))
            elif not scope.function and self.draw.chance(50):
                scope.outputs.append(helper.make_tensor_value_info(name, FLOAT, [None, *shape]))

    def _scan(self, scope: Scope, depth: int) -> None:
        length = self.draw.integer(1, 3)
        states = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(0, 1))]
        slices = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(1, 2))]
        scans = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(0 if states else 1, 1))]
        inputs = [self.fit(scope, self.draw.pick(scope.visible), s) for s in states]
        inputs += [self.fit(scope, self.draw.pick(scope.visible), (length, *s)) for s in slices]
        inner = self._inner(scope)
        formal = self._body_inputs(inner, [*states, *slices])
        self._fill(inner, self.draw.integer(0, 2), depth + 1)
        outputs = [self._hand_out(inner, s) for s in (*states, *scans)]
        attributes: dict[str, Any] = {"body": self._graph(inner, formal, outputs), "num_scan_inputs": len(slices)}
        self._leave(scope, inner)
        if self.draw.chance(30):
            attributes["scan_input_directions"] = [self.draw.integer(0, 1) for _ in slices]
        if scans and self.draw.chance(30):
            attributes["scan_output_directions"] = [1]
        self._structured(scope, "Scan", inputs, [*states, *((length, *s) for s in scans)], **attributes)

    def _call(self, scope: Scope, depth: int) -> None:
        """A call of a model-local function, made for it or made before."""
        shapes = [self.draw.pick(_SHAPES) for _ in range(self.draw.integer(1, 2))]
        result = self.draw.pick(_SHAPES)
        name = f"F{self.draw.integer(0, 2**30)}"
        inner = Scope(set(), [], function=True)
        formal = [v.name for v in self._body_inputs(inner, shapes)]
        self._fill(inner, self.draw.integer(1, 2), depth=self.draw.integer(1, 2))
        made = inner.fresh(self.draw)
        source = self.fit(inner, self.draw.pick(inner.visible), result)
        self._node(inner, "Identity", [source], [made])
        self.domains[_DOMAIN] = 1
        imports = [helper.make_opsetid(d, v) for d, v in self.domains.items()]
        self.functions.append(helper.make_function(_DOMAIN, name, formal, [made], inner.nodes, imports))
        for _ in range(self.draw.integer(1, 2)):
            inputs = [self.fit(scope, self.draw.pick(scope.visible), s) for s in shapes]
            self._structured(scope, name, inputs, [result], domain=_DOMAIN)

    # ---------------------------------------------------------------------------------------- interface

    def _outputs(self, scope: Scope) -> None:
        """Some values of the main graph: those nobody reads, and others, which may be inputs or initializers."""
        read = {name for node in scope.nodes for name in node.input}
        last = [v for v in scope.visible[-6:] if v.name not in read] or scope.visible[-1:]
        chosen = {v.name: v for v in last}
        for _ in range(self.draw.integer(0, 2)):
            value = self.draw.pick(scope.visible)
            chosen.setdefault(value.name, value)
        scope.outputs[:0] = [info(v.name, v.shape) for v in chosen.values()]


def generate(draw: Draw) -> tuple[ModelProto, dict[str, Any]]:
    """A random model and one batch for it."""
    generator = Generator(draw)
    return generator.model(), generator.feeds


class Seeded:
    """Draws from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high + 1))

    def pick(self, options: Sequence[T]) -> T:
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) < percent


__all__ = ["Draw", "Generator", "Seeded", "generate", "onnx"]
