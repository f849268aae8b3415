"""What must not change the result: random models against altered copies of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import GraphProto, ModelProto, NodeProto, helper

import converter
from converter.types import PolicyOverride, Report
from tests.conformance.emulation import Runnable, bodies

from .graphs import Seeded, generate

MODELS = 40
"""Random models per test and format."""
FORMATS = ("fp16", "bf16")
Feeds = dict[str, Any]


def random_models(to: str) -> Iterator[tuple[int, ModelProto, Feeds]]:
    """Models that ONNX accepts and ONNX Runtime runs; other seeds for each format."""
    found, seed = 0, 10_000 * FORMATS.index(to)
    while found < MODELS:
        model, feeds = generate(Seeded(seed))
        seed += 1
        try:
            onnx.checker.check_model(model, full_check=True)
            Runnable(model).run(feeds)
        except Exception:
            continue
        found += 1
        yield seed - 1, model, feeds


def converted(model: ModelProto, feeds: Feeds, to: str, **options: Any) -> tuple[ModelProto, Report]:
    given = ModelProto()
    given.CopyFrom(model)
    done = converter.convert(given, feeds, to=to, **options)
    assert done.model is not None
    return ir.to_proto(done.model), done.report


def within(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from within(body)


@pytest.mark.suite
@pytest.mark.parametrize("to", FORMATS)
class TestMetamorphic:
    def test_all_wide_is_the_given_model_bit_for_bit(self, to: str) -> None:
        for seed, model, feeds in random_models(to):
            made, report = converted(model, feeds, to, overrides=(PolicyOverride(node="*"),))
            assert all(d.format != to for d in report.decisions), seed
            assert not report.clamps, seed
            before, after = Runnable(model).run(feeds), Runnable(made).run(feeds)
            for name, expected in before.items():
                assert np.asarray(expected).tobytes() == np.asarray(after[name]).tobytes(), (seed, name)

    def test_converting_twice_is_converting_once(self, to: str) -> None:
        for seed, model, feeds in random_models(to):
            once, first = converted(model, feeds, to)
            twice, second = converted(once, feeds, to)
            assert onnx.printer.to_text(twice) == onnx.printer.to_text(once), seed
            assert second.verdict.status == first.verdict.status, seed

    def test_names_and_order_decide_nothing(self, to: str) -> None:
        for seed, model, feeds in random_models(to):
            other, names = renamed(model)
            shuffle(other, np.random.default_rng(seed))
            _, one = converted(model, feeds, to)
            _, two = converted(other, {names[n]: a for n, a in feeds.items()}, to)
            assert decisions(one) == decisions(two), seed
            assert len(one.clamps) == len(two.clamps), seed

    def test_a_branch_nobody_uses_changes_nothing(self, to: str) -> None:
        for seed, model, feeds in random_models(to):
            other = ModelProto()
            other.CopyFrom(model)
            source = model.graph.input[0].name
            other.graph.node.append(helper.make_node("Neg", [source], ["nobody_reads_this"], "unused"))
            other.graph.node.append(helper.make_node("Exp", ["nobody_reads_this"], ["nor_this"], "unused_too"))
            _, one = converted(model, feeds, to)
            _, two = converted(other, feeds, to)
            left = tuple(d for d in decisions(two, named=True) if not d[0].startswith("unused"))
            assert left == decisions(one, named=True), seed
            assert [o.figures for o in one.outputs] == [o.figures for o in two.outputs], seed


def decisions(report: Report, named: bool = False) -> tuple[tuple[str, ...], ...]:
    """Operator, format and rule of every node; with ``named`` its name first."""
    return tuple(sorted((*((d.node,) if named else ()), d.op_type, d.format, d.rule) for d in report.decisions))


def renamed(model: ModelProto) -> tuple[ModelProto, dict[str, str]]:
    """The model with other names for all values and nodes, and the new names by the old ones."""
    made = ModelProto()
    made.CopyFrom(model)
    names: dict[str, str] = {}
    for graph in within(made.graph):
        for named in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            named.name = names.setdefault(named.name, f"z{len(names)}")
        rename(graph.node, names)
    for function in made.functions:
        inside: dict[str, str] = {}
        rename(function.node, inside)
        for node in function.node:
            for graph in (g for body in bodies(node) for g in within(body)):
                for named in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
                    named.name = inside.setdefault(named.name, f"z{len(inside)}")
                rename(graph.node, inside)
        for field in (function.input, function.output):
            field[:] = [inside.setdefault(name, f"z{len(inside)}") for name in field]
    return made, names


def rename(nodes: Iterable[NodeProto], names: dict[str, str]) -> None:
    for node in nodes:
        node.name = f"k{node.name}" if node.name else ""
        for field in (node.input, node.output):
            field[:] = [names.setdefault(name, f"z{len(names)}") if name else "" for name in field]


def shuffle(model: ModelProto, rng: np.random.Generator) -> None:
    """Put the nodes of every graph in another order that is still sorted."""
    for graph in within(model.graph):
        waiting = list(graph.node)
        mine = {name for node in waiting for name in node.output if name}
        made: set[str] = set()
        order: list[NodeProto] = []
        while waiting:
            ready = [k for k, node in enumerate(waiting) if (reads(node) & mine) <= made]
            node = waiting.pop(int(rng.choice(ready)))
            made.update(node.output)
            order.append(node)
        copies = [NodeProto.FromString(node.SerializeToString()) for node in order]
        del graph.node[:]
        graph.node.extend(copies)


def reads(node: NodeProto) -> set[str]:
    """Names a node reads, those inside its bodies included."""
    found = set(node.input)
    for body in bodies(node):
        for inner in body.node:
            found |= reads(inner)
        found |= {o.name for o in body.output}
    return found
