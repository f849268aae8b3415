"""What every test gets: a clean environment, no network, seeds that can be read off a failure."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("default", derandomize=True, deadline=None)
settings.register_profile("night", derandomize=False, deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("NARROWCAST_HYPOTHESIS", "default"))

_OURS = ("NARROWCAST_", "ORT_", "REDIS_URL", "DATABASE_URL")
_KEPT = ("NARROWCAST_REGENERATE", "NARROWCAST_HYPOTHESIS")


class NetworkUsed(RuntimeError):
    """A test tried to leave this machine."""


def _local(address: object) -> bool:
    host = address[0] if isinstance(address, tuple) else ""
    return not isinstance(address, tuple) or str(host).startswith("127.") or host in ("::1", "localhost")


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Connections beyond this machine are errors."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: object) -> None:
        if not _local(address):
            raise NetworkUsed(f"a test connects to {address}; tests stay on this machine")
        real(self, address)  # type: ignore[arg-type]

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", connect)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the caller's shell sets for us or for ONNX Runtime does not reach a test."""
    for name in list(os.environ):
        if name.startswith(_OURS) and name not in _KEPT:
            monkeypatch.delenv(name)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test's name alone; the seed is printed with a failure."""
    seed = zlib.crc32(request.node.nodeid.encode())
    print(f"rng seed {seed}")
    return np.random.default_rng(seed)
