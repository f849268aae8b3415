"""The operators of one run, recorded: the way to a graph for TorchScript that neither exporter takes.

The recording is exact for the sizes and numbers of that run.  Where the program asked for the values of a tensor that
depends on its arguments, it could go another way on other values, and the recording is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from converter.source.torch_program.reasons import ExportFailed


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Writes every operator that runs into a graph."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.root = torch.nn.Module()
        self.graph = torch.fx.Graph()
        self._nodes: dict[int, torch.fx.Node] = {}
        self._kept: list[torch.Tensor] = list(inputs)
        self._tainted: set[torch.fx.Node] = set()
        self.problem: ExportFailed | None = None
        """Why the recording is void; TorchScript loses the exception on its way out."""
        for number, tensor in enumerate(inputs):
            node = self.graph.placeholder(f"input_{number}")
            self._nodes[id(tensor)] = node
            self._tainted.add(node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        taken = self._as_nodes(args, func), self._as_nodes(kwargs, func)  # before it runs: it may write into them
        result = func(*args, **kwargs)
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not made:
            self._check_free(func, args, kwargs)
            return result
        node = self.graph.call_function(func, *taken)
        if any(source in self._tainted for source in node.all_input_nodes):
            self._tainted.add(node)
            self._tainted |= {source for source in node.all_input_nodes if func._schema.is_mutable}
        self._name(result, node)
        return result

    def _check_free(self, func: Any, args: Any, kwargs: Any) -> None:
        """A number that was read out of a tensor decides the program's way; it must not depend on the arguments."""
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(self._nodes.get(id(tensor)) in self._tainted for tensor in read):
            self.problem = ExportFailed(
                f"the program reads the value of a tensor that depends on its arguments ({func}), so its control flow "
                "may differ on other batches; export it with torch.export from the original module, with torch.cond"
            )
            raise self.problem

    def _name(self, result: Any, node: torch.fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            self._nodes.setdefault(id(result), node)
            self._kept.append(result)  # ids must not be used again while the recording lasts
            return
        for position, part in enumerate(result):
            if isinstance(part, torch.Tensor | list | tuple):
                item = self.graph.call_function(operator.getitem, (node, position))
                if node in self._tainted:
                    self._tainted.add(item)
                self._name(part, item)

    def _as_nodes(self, values: Any, func: Any) -> Any:
        writes = func._schema.is_mutable
        return pytree.tree_map(lambda v: self._node_of(v, writes) if isinstance(v, torch.Tensor) else v, values)

    def _node_of(self, tensor: torch.Tensor, writes: bool = False) -> torch.fx.Node:
        if id(tensor) not in self._nodes:
            name = f"tensor_{len(self._kept)}"
            self.root.register_buffer(name, tensor.detach().clone() if writes else tensor.detach())
            self._kept.append(tensor)
            self._nodes[id(tensor)] = self.graph.get_attr(name)
        return self._nodes[id(tensor)]

    def finish(self, results: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
        """The recording as a module from input tensors to a tuple of results."""
        self.graph.output(tuple(self._node_of(tensor) for tensor in results))
        self.graph.lint()
        return torch.fx.GraphModule(self.root, self.graph)


def record(run: Callable[[], Any], inputs: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """Run once and record; the module takes the input tensors and gives the tensors of the result as a tuple.

    Raises:
        ExportFailed: the program's way depends on the values of its arguments.
    """
    recorder = Recorder(inputs)
    try:
        with torch.no_grad(), recorder:
            result = run()
    except Exception:
        if recorder.problem is not None:
            raise recorder.problem from None
        raise
    return recorder.finish([leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)])
