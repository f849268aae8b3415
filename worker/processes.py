"""What Linux can tell about processes, and how a process ties its life to another's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``number`` when the parent's thread that started us ends; exit if it has already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that it can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def children_of(pid: int) -> list[int]:
    """The direct children of a process; empty when it is gone."""
    found: list[int] = []
    tasks = _PROC / str(pid) / "task"
    with contextlib.suppress(OSError):  # gone, or going while we look
        for thread in os.listdir(tasks):  # noqa: PTH208 - Path.iterdir is as fragile and slower
            with contextlib.suppress(OSError):
                found += [int(word) for word in (tasks / thread / "children").read_text().split()]
    return found


def family(pid: int) -> Iterator[int]:
    """The process and all its descendants."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += children_of(one)


def resident_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants, shared pages counted in each."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for one in family(pid):
        with contextlib.suppress(OSError, IndexError):
            total += int((_PROC / str(one) / "statm").read_text().split()[1]) * page
    return total


def kill_strays(keep: frozenset[int]) -> int:
    """Kill and reap every child of this process that is not in ``keep``; the number killed.

    Only for a process that adopts orphans and starts no child behind this function's back.
    """
    killed = 0
    while strays := [pid for pid in children_of(os.getpid()) if pid not in keep]:
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            killed += 1
    return killed


def machine_memory() -> int:
    """Bytes this machine, or the container we are in, may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total
