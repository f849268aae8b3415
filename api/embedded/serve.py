"""``narrowcast serve``: broker, API and worker under one supervisor, in one data folder."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from api.embedded.broker import find_server, server_command, socket_path
from api.embedded.supervisor import Member, Supervisor
from converter.errors import EnvironmentFailure
from worker.settings import Settings

LOG: Final = logging.getLogger("narrowcast.serve")
READY_WITHIN_S: Final = 60.0
GRACE_S: Final = 10.0
SOFT_SHUTDOWN_S: Final = 5.0
"""What Ctrl-C leaves a running job to end; after that it goes back to the queue."""


def serve_all(settings: Settings, host: str, port: int) -> int:
    """Run everything until it is told to stop; the exit status.

    Raises:
        EnvironmentFailure: the folder or the port is in use.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    folder = settings.data_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(folder):
        port = _free_port(host, port)
        members = _members(settings, folder, host, port)
        announcer = _Announcer(host, port, folder)
        return Supervisor(members).run(announcer.tick)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel lets go of it when this process ends."""
    with (folder / "serve.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise EnvironmentFailure(
                f"{folder} is in use by the process {file.read().strip() or '?'}; stop it or give another --data folder"
            ) from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def _free_port(host: str, port: int) -> int:
    """The port, or a free one for 0; raises EnvironmentFailure when somebody listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise EnvironmentFailure(f"cannot listen on {host} port {port}: {error.strerror}; try --port") from error
        return int(probe.getsockname()[1])


def _members(settings: Settings, folder: Path, host: str, port: int) -> list[Member]:
    environment = {
        **os.environ,
        "NARROWCAST_DATA_DIR": str(folder),
        "NARROWCAST_HOST": host,
        "NARROWCAST_PORT": str(port),
        "NARROWCAST_SOFT_SHUTDOWN_S": str(min(settings.soft_shutdown_s, SOFT_SHUTDOWN_S)),
    }
    members = []
    worker = "worker"
    if not settings.redis_url:
        program = find_server(os.environ.get("NARROWCAST_BROKER"))
        if program is None:
            LOG.warning("no broker on this machine: the worker reads its jobs from the database")
            worker = "worker.dispatcher"
        else:
            place = folder / "broker"
            place.mkdir(exist_ok=True, mode=0o700)
            path = socket_path(place)
            environment["REDIS_URL"] = f"unix://{path}"
            members.append(Member("broker", server_command(program, place, path), environment, GRACE_S))
    python = [sys.executable, "-P", "-m"]
    members.append(Member("api", [*python, "api.server"], environment, GRACE_S))
    members.append(Member("worker", [*python, worker], environment, GRACE_S + SOFT_SHUTDOWN_S))
    return members


class _Announcer:
    """Says once that the service is ready, and where."""

    def __init__(self, host: str, port: int, folder: Path) -> None:
        self._host = host
        self._port = port
        self._folder = folder
        self._deadline = time.monotonic() + READY_WITHIN_S
        self._done = False

    def tick(self) -> None:
        if self._done:
            return
        missing = self._missing()
        if not missing:
            print(f"narrowcast is ready at {self._url()} (everything is kept in {self._folder})", flush=True)
            self._done = True
        elif time.monotonic() > self._deadline:
            LOG.warning("still not ready after %g s: %s", READY_WITHIN_S, missing)
            self._done = True

    def _url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def _missing(self) -> str:
        """What is not ready yet; empty when everything is."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        connection = http.client.HTTPConnection(host, self._port, timeout=2)
        try:
            connection.request("GET", "/readyz", headers={"Host": "localhost"})
            answer = connection.getresponse()
            return "" if answer.status == 200 else str(json.loads(answer.read()).get("detail"))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return str(error)
        finally:
            connection.close()
