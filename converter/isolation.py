"""Running one request in a child process that may die: the only place that starts one.

The child is a fresh interpreter with an empty environment, a process group of its own and resource limits; it
dies with its parent.  What crosses the border is JSON and files, never pickle:

* the parent writes ``request.json`` into a private folder and sends the folder's path as one line on stdin;
* the child answers with JSON lines on its event pipe: ``{"event": "progress", "stage", "done", "total"}``,
  ``{"event": "warning", "message"}``, and at the end one ``{"event": "result", ...}`` or
  ``{"event": "error", "exit_status", "code", "message", "retryable"}``;
* what may be long (the report that the caller asked to see) the child leaves as ``shown.json`` in the folder, and
  it comes back as ``shown`` in the result;
* before each operator the child writes its name into ``breadcrumb`` in the folder, so that a native crash can
  be named.

A child can be started before there is a request (``IsolatedChild.start``): it imports the engine and waits.
Whatever a child left behind in its process group is killed when the child is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from converter.errors import EnvironmentFailure, InputError, NarrowcastError, RunCrashed

PROTOCOL_VERSION: Final = 1
BREADCRUMB_BYTES: Final = 4096
SHOWN_FILE: Final = "shown.json"
MAX_EVENT_BYTES: Final = 16 * 2**20
STDERR_TAIL_BYTES: Final = 64 * 2**10
EXIT_GRACE_SECONDS: Final = 5.0
"""How long a child may take to exit after its final event."""
_SILENCE_SECONDS: Final = 0.2

Event = Mapping[str, Any]

_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from converter.child import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Resource limits of the child, in bytes and seconds; 0 means "no limit"."""

    address_space: int = 0
    file_size: int = 0
    open_files: int = 1024
    cpu_seconds: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a child ended.

    ``result`` is its final event; ``signal`` the signal that killed it (0: none); ``node`` the operator it was
    running then.
    """

    exit_status: int
    result: Event | None
    signal: int
    node: str
    log: str

    def raise_for_crash(self) -> None:
        """Raise RunCrashed when the child died instead of answering."""
        if self.result is not None:
            return
        cause = f"signal {self.signal} ({signal.Signals(self.signal).name})" if self.signal else "no answer"
        where = f" while running node {self.node}" if self.node else ""
        last = self.log.strip().splitlines()
        tail = f"; its last words: {last[-1][:300].rstrip('. ')}" if last else ""
        raise RunCrashed(
            f"the engine's child process died with {cause}{where}{tail}. "
            "The model was not converted; keep that node out of the model or report the crash.",
            node=self.node,
            signal=self.signal,
        )


@dataclass
class IsolatedChild:
    """One child process for one request.

    ``command`` replaces the engine by another program that speaks the protocol; it is given the same three
    arguments (folder of the source, limits, pid of the parent).
    """

    limits: ChildLimits = field(default_factory=ChildLimits)
    command: tuple[str, ...] = (sys.executable, "-I", "-c", _BOOT)
    _running: subprocess.Popen[bytes] | None = None
    _log: bytearray = field(default_factory=bytearray)
    _killed: bool = False
    _used: bool = False
    _gone: threading.Event = field(default_factory=threading.Event)

    def start(self) -> IsolatedChild:
        """Start the interpreter; it loads the engine and waits for its request."""
        root = str(Path(__file__).resolve().parent.parent)
        limits = json.dumps(
            [self.limits.address_space, self.limits.file_size, self.limits.open_files, self.limits.cpu_seconds]
        )
        try:
            self._running = subprocess.Popen(
                [*self.command, root, limits, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise EnvironmentFailure(f"the engine's child process cannot be started: {error}") from error
        threading.Thread(target=self._collect_log, args=(self._running.stderr,), daemon=True).start()
        threading.Thread(target=self._clear_group, args=(self._running.pid,), daemon=True).start()
        return self

    @property
    def pid(self) -> int:
        return self._running.pid if self._running else 0

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._gone.is_set()

    @property
    def log(self) -> str:
        """The end of what the child (and native libraries in it) wrote to stderr."""
        return self._log.decode(errors="replace")

    def run(self, request: Event, folder: Path, on_event: Callable[[Event], None]) -> Outcome:
        """Send the request, deliver progress and warnings, and wait for the end.

        ``folder`` is private to this run.  Exceptions from ``on_event`` kill the child and pass on.
        """
        running = self._running or self.start()._running
        self._used = True
        assert running is not None
        assert running.stdin is not None
        assert running.stdout is not None
        crumb = folder / "breadcrumb"
        crumb.write_bytes(b"\0" * BREADCRUMB_BYTES)
        (folder / "request.json").write_text(json.dumps({"version": PROTOCOL_VERSION, **request}))
        try:
            self._send(running.stdin, folder)
            result = _final_event(_lines(running.stdout, self._gone), on_event)
        except BaseException:
            self.kill()
            raise
        finally:
            running.stdout.close()
        if result is not None and not self._gone.wait(EXIT_GRACE_SECONDS):
            self.kill()
        status = self._reap(running)
        died_of = -status if status < 0 and not self._killed else 0
        shown = folder / SHOWN_FILE
        if result is not None and shown.exists():
            result = {**result, "shown": shown.read_text(encoding="utf-8", errors="surrogatepass")}
        node = crumb.read_bytes().split(b"\0", 1)[0].decode(errors="replace")
        return Outcome(status, result, died_of, node, self.log)

    def kill(self) -> None:
        """Kill the child's whole process group and wait for it."""
        if self._running is None:
            return
        self._killed = True
        self._signal(signal.SIGKILL)
        self._reap(self._running)
        if not self._used:  # else `run` closes them, in its own thread
            for pipe in (self._running.stdin, self._running.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def terminate(self, grace_seconds: float) -> None:
        """Ask the group to end (SIGTERM), and kill it when it has not done so after ``grace_seconds``."""
        self._killed = True
        self._signal(signal.SIGTERM)
        if not self._gone.wait(grace_seconds):
            self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._running is not None and self._running.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, number)

    def _reap(self, running: subprocess.Popen[bytes]) -> int:
        self._gone.wait()
        return running.wait()

    def _clear_group(self, pid: int) -> None:
        """Wait for the child without reaping it, so that its pid still names its group, and kill the rest.

        Without this a grandchild that outlives the child would hold the event pipe open for ever.
        """
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self._gone.set()

    def _send(self, stdin: IO[bytes], folder: Path) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died while starting: the missing answer says so
            stdin.write(os.fsencode(folder) + b"\n")
            stdin.close()

    def _collect_log(self, stderr: IO[bytes]) -> None:
        with stderr:
            while piece := stderr.read1(65536):  # type: ignore[attr-defined]
                self._log += piece
                del self._log[:-STDERR_TAIL_BYTES]


def _final_event(lines: Iterable[bytes], on_event: Callable[[Event], None]) -> Event | None:
    """Deliver events up to the final ``result`` or ``error`` event, which is returned; None: there was none."""
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # not ours: something native wrote to the pipe
        if event.get("event") in ("result", "error"):
            return dict(event)
        on_event(event)
    return None


def _lines(stdout: IO[bytes], gone: threading.Event) -> Iterator[bytes]:
    """Lines until the pipe ends, or is silent after the child has gone: a descendant may still hold it open."""
    rest = b""
    while True:
        last = gone.is_set()
        if not select.select([stdout], [], [], 0.0 if last else _SILENCE_SECONDS)[0]:
            if last:
                return
            continue
        piece = os.read(stdout.fileno(), 2**16)
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > MAX_EVENT_BYTES:
            rest = b""


def run_isolated(
    request: Event,
    on_event: Callable[[Event], None] = lambda _: None,
    limits: ChildLimits | None = None,
) -> Event:
    """Run a request in a fresh child and return its final ``result`` event.

    Raises:
        RunCrashed: the child died; the message names the node it was in.
        NarrowcastError: the child reported an error (re-raised by its branch with the same text).
    """
    folder = Path(tempfile.mkdtemp(prefix="narrowcast-"))
    try:
        outcome = IsolatedChild(limits or ChildLimits()).run(request, folder, on_event)
        outcome.raise_for_crash()
        assert outcome.result is not None
        if outcome.result["event"] == "error":
            raise error_from_event(outcome.result)
        return outcome.result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def error_from_event(event: Event) -> NarrowcastError:
    """The exception an ``error`` event stands for: same branch, same code, same text.

    The engine's own classes are not loaded here, so the branch follows from the event where the code is not known.
    """
    code = str(event.get("code"))
    kinds = {kind.code: kind for kind in _error_kinds(NarrowcastError)}
    kind = kinds.get(code) or _branch(event)
    error = kind(str(event.get("message", "")))
    error.code = code
    return error


def _branch(event: Event) -> type[NarrowcastError]:
    if event.get("exit_status") == InputError.exit_status:
        return InputError
    return EnvironmentFailure if event.get("retryable") else NarrowcastError


def _error_kinds(base: type[NarrowcastError]) -> list[type[NarrowcastError]]:
    found = [base]
    for kind in base.__subclasses__():
        found += _error_kinds(kind)
    return found
