"""The child that may die: what crosses the border, and how each end is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
import pytest

import converter
from converter import child, isolation
from converter.errors import EnvironmentFailure, InputError, InternalError, NarrowcastError, RunCrashed
from converter.isolation import ChildLimits, IsolatedChild, Outcome, error_from_event, run_isolated
from tests.models.build import model
from tests.models.tiny import tiny


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("isolated")
    given = tiny("mlp")
    onnx.save(given.model(), folder / "m.onnx")
    np.savez(folder / "b.npz", **given.feeds(np.random.default_rng(0)))
    return folder


def request(folder: Path, **more: Any) -> dict[str, Any]:
    return {"verb": "convert", "model": str(folder / "m.onnx"), "samples": [str(folder / "b.npz")], "options": {},
            "threads": 1} | more  # fmt: skip


class TestRuns:
    def test_a_result_and_progress(self, files: Path, tmp_path: Path) -> None:
        events: list[Any] = []
        result = run_isolated(
            request(files, output=str(tmp_path / "o.onnx"), report=str(tmp_path / "r.json")), events.append
        )
        assert (result["event"], result["exit_status"], result["verdict"]) == ("result", 0, "pass")
        assert result["files"] == {"model": [str(tmp_path / "o.onnx")], "report": str(tmp_path / "r.json")}
        stages = [e["stage"] for e in events if e["event"] == "progress"]
        assert {"load", "observe", "compare"} <= set(stages)
        assert all(0 <= e["done"] <= e["total"] for e in events if e["event"] == "progress")

    def test_its_folder_is_taken_away(self, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(isolation.tempfile, "tempdir", str(tmp_path))
        run_isolated(request(files, options={"validate": False}))
        assert list(tmp_path.iterdir()) == []

    def test_an_exception_of_the_listener_kills_the_child(self, files: Path) -> None:
        def stop(_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_isolated(request(files), stop)

    def test_the_child_inherits_no_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_TOKEN", "x")
        running = IsolatedChild().start()
        try:
            environment = Path(f"/proc/{running.pid}/environ").read_bytes()
            assert b"SECRET_TOKEN" not in environment
        finally:
            running.kill()

    def test_killing_twice_and_before_the_start(self) -> None:
        idle = IsolatedChild()
        idle.kill()
        running = idle.start()
        running.kill()
        running.kill()


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "status", "code", "message"),
        [
            ({"model": "/none.onnx"}, 2, "MODEL_PARSE_ERROR", "model '/none.onnx' does not exist; check the path"),
            ({"samples": ["/none.npz"]}, 2, "INPUT_MISMATCH",
             "sample batch '/none.npz' does not exist; check the path"),
            ({"options": {"to": "fp8"}}, 2, "INVALID_OPTION", "option to is 'fp8'; it takes fp16 or bf16"),
            ({"verb": "sing"}, 2, "INVALID_OPTION", "unknown request 'sing'; known are convert, validate,"
             " inspect, trace, hand_back"),
            ({"output": "/none/o.onnx"}, 3, "OUTPUT_FAILED",
             "the folder of output '/none/o.onnx' does not exist; make it first"),
        ],
        ids=["model", "batch", "option", "verb", "output"],
    )  # fmt: skip
    def test_cross_the_border(self, files: Path, change: dict[str, Any], status: int, code: str, message: str) -> None:
        with pytest.raises(NarrowcastError) as refused:
            run_isolated(request(files, **change))
        assert (refused.value.exit_status, refused.value.code, str(refused.value)) == (status, code, message)
        assert isinstance(refused.value, InputError if status == 2 else EnvironmentFailure)

    def test_a_disk_that_is_full(self, files: Path, tmp_path: Path) -> None:
        """A limit on file sizes makes the same error at the same place."""
        with pytest.raises(EnvironmentFailure) as refused:
            run_isolated(request(files, output=str(tmp_path / "o.onnx")), limits=ChildLimits(file_size=100))
        assert f"output '{tmp_path}/o.onnx' cannot be written: File too large" in str(refused.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_child_that_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(isolation.subprocess, "Popen", refuse)
        with pytest.raises(EnvironmentFailure) as refused:
            IsolatedChild().start()
        assert str(refused.value) == (
            "the engine's child process cannot be started: [Errno 11] Resource temporarily unavailable"
        )


class TestCrashes:
    def outcome(self, **fields: Any) -> Outcome:
        return Outcome(**({"exit_status": -9, "result": None, "signal": 9, "node": "", "log": ""} | fields))

    @pytest.mark.parametrize(
        ("fields", "message"),
        [({}, "the engine's child process died with signal 9 (SIGKILL). "),
         ({"node": "conv1"}, "the engine's child process died with signal 9 (SIGKILL) while running node conv1. "),
         ({"signal": 0}, "the engine's child process died with no answer. "),
         ({"log": "one\ntwo\n"}, "the engine's child process died with signal 9 (SIGKILL); its last words: two. ")],
        ids=["bare", "node", "silent", "words"],
    )  # fmt: skip
    def test_say_where(self, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(RunCrashed) as crashed:
            self.outcome(**fields).raise_for_crash()
        assert str(crashed.value) == (
            message + "The model was not converted; keep that node out of the model or report the crash."
        )
        assert crashed.value.node == fields.get("node", "")

    def test_a_result_is_no_crash(self) -> None:
        self.outcome(result={"event": "result"}).raise_for_crash()

    def test_too_little_memory(self, files: Path) -> None:
        """100 MiB of address space do not hold the engine: the child ends without an answer, or says so."""
        with pytest.raises(NarrowcastError) as ended:
            run_isolated(request(files), limits=ChildLimits(address_space=100 * 2**20))
        assert ended.value.exit_status == 3

    def test_a_native_abort(self, tmp_path: Path) -> None:
        onnx.save(model("g (float[2] x) => (float[2] y) "
         "{ [noise] r = RandomNormalLike<scale = 0.0>(x)  y = Add(x, r) }"),
                  tmp_path / "m.onnx")  # fmt: skip
        np.savez(tmp_path / "b.npz", x=np.ones(2, np.float32))
        with pytest.raises(RunCrashed) as crashed:
            run_isolated(request(tmp_path))
        assert (crashed.value.node, crashed.value.signal) == ("noise", 6)


def engine_errors() -> Iterator[type[NarrowcastError]]:
    """Every error class of the engine, with every module of it loaded."""
    for found in walk_packages(converter.__path__, "converter."):
        if "torch" not in found.name and not found.name.endswith("._sums"):
            import_module(found.name)

    def below(kind: type[NarrowcastError]) -> Iterator[type[NarrowcastError]]:
        yield kind
        for sub in kind.__subclasses__():
            yield from below(sub)

    return (kind for kind in below(NarrowcastError) if kind.__module__.startswith("converter."))


def test_every_error_keeps_status_code_and_text_where_its_class_is_not_known(tmp_path: Path) -> None:
    """The parent has loaded no part of the engine: a fresh process turns each event back into an error."""
    events = []
    for kind in engine_errors():
        made = child._answer({"version": isolation.PROTOCOL_VERSION}, lambda _: None, lambda _: None, failing(kind))
        assert (made["event"], made["exit_status"]) == ("error", kind.exit_status)
        events.append(made)
    script = (
        "import json, sys\n"
        "from converter.isolation import error_from_event\n"
        "for event in json.load(sys.stdin):\n"
        "    error = error_from_event(event)\n"
        "    assert error.exit_status == event['exit_status'], event\n"
        "    assert error.retryable == event['retryable'], event\n"
        "    assert (error.code, str(error)) == (event['code'], event['message']), event\n"
        "    assert 'onnx' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], input=json.dumps(events), text=True, capture_output=True,
                          check=False, cwd=Path(__file__).parents[1])  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def failing(kind: type[NarrowcastError]) -> Any:
    def run(*_: Any) -> None:
        raise kind("it broke")

    return run


class TestAnswers:
    def answer(self, request: dict[str, Any], run: Any) -> dict[str, Any]:
        return child._answer({"version": isolation.PROTOCOL_VERSION} | request, lambda _: None, lambda _: None, run)

    def test_another_protocol(self) -> None:
        answer = self.answer({"version": 99}, None)
        assert answer["message"] == "request of protocol 99, this engine speaks 1"
        assert answer["exit_status"] == 3

    def test_memory(self) -> None:
        def run(*_: Any) -> None:
            raise MemoryError

        answer = self.answer({}, run)
        assert (answer["exit_status"], answer["code"]) == (3, "OUT_OF_MEMORY")
        assert answer["message"] == (
            "the run needed more memory than it may use; use smaller batches or a machine with more memory"
        )

    def test_a_bug(self, capsys: pytest.CaptureFixture[str]) -> None:
        def run(*_: Any) -> None:
            raise KeyError("lost")

        answer = self.answer({}, run)
        assert (answer["exit_status"], answer["code"]) == (3, "INTERNAL")
        assert answer["message"] == "unexpected KeyError: 'lost'; this is a bug in narrowcast, please report it"
        assert "Traceback" in capsys.readouterr().err

    def test_a_result(self) -> None:
        assert self.answer({}, lambda *_: {"verdict": "pass"}) == {
            "event": "result", "exit_status": 0, "verdict": "pass",
        }  # fmt: skip


def test_an_event_nobody_knows_is_our_bug() -> None:
    error = error_from_event({"event": "error", "message": "m"})
    assert (type(error), error.exit_status, str(error)) == (NarrowcastError, 3, "m")
    assert isinstance(error_from_event({"code": "INTERNAL", "exit_status": 3, "message": "m"}), NarrowcastError)
    assert issubclass(InternalError, NarrowcastError)


def test_the_breadcrumb_is_cut_to_its_page(tmp_path: Path) -> None:
    path = tmp_path / "breadcrumb"
    path.write_bytes(bytes(isolation.BREADCRUMB_BYTES))
    drop = child.breadcrumb(path)
    drop("näme")
    assert path.read_bytes().split(b"\0")[0].decode() == "näme"
    drop("x" * 10_000)
    assert len(path.read_bytes()) == isolation.BREADCRUMB_BYTES
    drop("a")
    assert path.read_bytes().split(b"\0")[0] == b"a"


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from converter.isolation import IsolatedChild\n"
        "print(IsolatedChild().start().pid, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[1])  # fmt: skip
    pid = int(done.stdout)
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        os.sched_yield()
        import time

        time.sleep(0.01)
    pytest.fail("the child outlived its parent")
