"""The engine's child process: reads one request, runs it, answers in JSON lines (see ``isolation``)."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from converter.errors import NarrowcastError
from converter.isolation import BREADCRUMB_BYTES, PROTOCOL_VERSION, SHOWN_FILE

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Entry point of ``isolation``'s child; returns the exit status."""
    _bind_to_parent(int(sys.argv[3]))
    _limit(json.loads(sys.argv[2]))
    events = _private_stdout()
    from converter import work  # the engine is loaded before the request comes

    line = sys.stdin.buffer.readline().rstrip(b"\n")
    if not line:
        return 0  # the parent changed its mind
    folder = Path(os.fsdecode(line))
    request = json.loads((folder / "request.json").read_text())

    def tell(event: Mapping[str, Any]) -> None:
        events.write(json.dumps(event).encode() + b"\n")
        events.flush()

    # What the engine loads, and the graph it makes, lives for the whole process: full collections would only walk it
    # again and again, and make the time of a deep graph grow faster than the graph.
    gc.freeze()
    gc.set_threshold(100_000, 20, 1_000_000)
    answer = _answer(request, tell, breadcrumb(folder / "breadcrumb"), work.run)
    shown = answer.pop("shown", None)
    if shown is not None:
        (folder / SHOWN_FILE).write_text(shown, encoding="utf-8", errors="surrogatepass")
    tell(answer)
    return int(answer["exit_status"])


def _answer(
    request: Mapping[str, Any],
    tell: Callable[[Mapping[str, Any]], None],
    crumb: Callable[[str], None],
    run: Callable[..., Mapping[str, Any]],
) -> dict[str, Any]:
    """The final event of a request; every exception becomes an ``error``."""
    try:
        if request.get("version") != PROTOCOL_VERSION:
            raise NarrowcastError(
                f"request of protocol {request.get('version')}, this engine speaks {PROTOCOL_VERSION}"
            )
        return {"event": "result", "exit_status": 0, **run(request, tell, crumb)}
    except NarrowcastError as error:
        return {"event": "error", "exit_status": error.exit_status, "code": error.code, "message": str(error),
                "retryable": error.retryable}  # fmt: skip
    except MemoryError:
        text = "the run needed more memory than it may use; use smaller batches or a machine with more memory"
        return {"event": "error", "exit_status": 3, "code": "OUT_OF_MEMORY", "message": text}
    except Exception as error:
        traceback.print_exc()
        text = f"unexpected {type(error).__name__}: {error}; this is a bug in narrowcast, please report it"
        return {"event": "error", "exit_status": 3, "code": "INTERNAL", "message": text}


def _bind_to_parent(parent: int) -> None:
    """Die with the parent, also when it died before this line."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(3)


def _limit(limits: list[int]) -> None:
    address_space, file_size, open_files, cpu_seconds = limits
    wanted = (
        (resource.RLIMIT_AS, address_space),
        (resource.RLIMIT_FSIZE, file_size),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CPU, cpu_seconds),
    )
    for which, limit in wanted:
        if limit:
            hard = resource.getrlimit(which)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _private_stdout() -> IO[bytes]:
    """Keep the real stdout for events; whatever libraries print goes to stderr."""
    events = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return events


def breadcrumb(path: Path) -> Callable[[str], None]:
    """A function that writes a node's name where the parent finds it after a crash."""
    with path.open("r+b") as stream:
        page = mmap.mmap(stream.fileno(), BREADCRUMB_BYTES)

    def drop(label: str) -> None:
        text = label.encode()[: BREADCRUMB_BYTES - 1] + b"\0"
        page[: len(text)] = text

    return drop
