"""How a run can end from outside: Ctrl-C, a kill, a native abort, a bug; nothing is left behind."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import names, narrowcast, start, write
from tests.models.build import model
from tests.models.run import floats

CONVERT = ("convert", "model.onnx", "--samples", "batch.npz")


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A Loop that would take hours."""
    proto = model("""
        g (float[4] x, int64 n) => (float[4] y) {
          y = Loop(n, , x) <body = b (int64 i, bool c, float[4] h) => (bool d, float[4] z) {
            d = Identity(c)  [tick] z = Tanh(h) }> }""")
    write(tmp_path, proto, x=np.ones(4, np.float32), n=np.array(10**9))
    return tmp_path


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def running_node(private: Path) -> str:
    crumbs = list(private.glob("narrowcast-*/breadcrumb"))
    return crumbs[0].read_bytes().split(b"\0")[0].decode() if crumbs else ""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_it_and_its_child(endless: Path, tmp_path_factory: pytest.TempPathFactory, number: int,
                                        status: int) -> None:  # fmt: skip
    private = tmp_path_factory.mktemp("private")
    with start(endless, *CONVERT, "--json", extra={"TMPDIR": str(private)}) as running:
        wait_until(lambda: running_node(private) == "tick")
        (child,) = children(running.pid)
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out, err) == (status, "", "")
    wait_until(lambda: not Path(f"/proc/{child}").exists() or Path(f"/proc/{child}/stat").read_text().split()[2] == "Z")
    assert names(endless) == ["batch.npz", "model.onnx"]
    if number == signal.SIGINT:
        assert names(private) == []


def test_a_native_abort_names_the_node(tmp_path: Path) -> None:
    """ONNX Runtime kills the process on a standard deviation of zero."""
    proto = model("""
        g (float[4] x) => (float[4] y) {
          h = Neg(x)  [noise] r = RandomNormalLike<scale = 0.0>(h)  y = Add(h, r) }""")
    write(tmp_path, proto, x=floats([1, 2, 3, 4]))
    ended = narrowcast(tmp_path, *CONVERT)
    assert (ended.status, ended.out) == (3, "")
    assert ended.err.startswith("narrowcast: the engine's child process died with signal ")
    assert " while running node noise; its last words: " in ended.err
    assert ended.err.endswith("The model was not converted; keep that node out of the model or report the crash.\n")
    assert names(tmp_path) == ["batch.npz", "model.onnx"]


def test_the_child_that_is_killed_is_told(endless: Path) -> None:
    private = Path(tempfile.mkdtemp(dir=endless.parent))
    with start(endless, *CONVERT, extra={"TMPDIR": str(private)}) as running:
        wait_until(lambda: running_node(private) == "tick")
        (child,) = children(running.pid)
        subprocess.run(["kill", "-9", str(child)], check=True)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (3, "")
    assert err.startswith(
        "narrowcast: the engine's child process died with signal 9 (SIGKILL) while running node tick. "
    )
    assert names(private) == []
