"""Tests of PyTorch programs: collected only where torch is; its libraries' warnings are theirs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's pool must not fight with that of another worker."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def traced(tmp_path: Path) -> Callable[..., Any]:
    """Traces a module here, without a child; returns the facts and the folder."""
    from converter.source.torch_program.load import Program, from_module
    from converter.source.torch_program.trace import Order, trace

    def run(module: Any, *samples: dict[str, Any], to: str = "fp16", **order: Any) -> tuple[Any, Path]:
        program = module if isinstance(module, Program) else from_module(module)
        named = [(f"batch {k}", sample) for k, sample in enumerate(samples)]
        return trace(program, named, tmp_path, Order(to, **order)), tmp_path

    return run
