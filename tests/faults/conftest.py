"""Services to break, and the check afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.invariants import broken_invariants
from tests.service_kit import (
    Stack,
)
from worker.client import Doorbell
from worker.settings import Settings

MakeStack = Callable[..., Stack]


WITHIN_S = 12.0


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[MakeStack]:
    opened: list[Stack] = []

    def make(**options: Any) -> Stack:
        stack = Stack(tmp_path, **options)
        opened.append(stack)
        return stack.__enter__()

    yield make
    for one in opened:
        one.__exit__()


def check(stack: Stack, *, ended: bool = True) -> None:
    assert broken_invariants(stack.database, stack.data / "store", ended=ended) == []


def doorbell(stack: Stack) -> Doorbell:

    return Doorbell(Settings(data_dir=stack.data, redis_url=stack.broker.url))


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack
