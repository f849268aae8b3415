from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service_kit import Desk


def start_postgres(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A PostgreSQL server of the test's own; run by another user where we are root, which it refuses to be.

    It listens on a socket in the folder and on no port, so that several never meet.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    extra = {}
    if os.getuid() == 0:
        other = pwd.getpwnam("postgres")
        extra = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        os.chown(folder, other.pw_uid, other.pw_gid)
        user = "postgres"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    subprocess.run(["initdb", "-D", folder / "pg", "-U", user, "-A", "trust", "--no-sync"], check=True,
                   capture_output=True, env=environment, cwd="/", **extra)  # fmt: skip
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            ["postgres", "-D", folder / "pg", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off", "-c",
             "max_connections=200"],
            env=environment, cwd="/", stdout=log, stderr=log, **extra,
        )  # fmt: skip
    return server, f"postgresql://{user}@/postgres?host={folder}"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("no PostgreSQL server program on PATH")
    from tests.service_kit import wait_until
    from worker.database.engine import Database, DatabaseUnavailable

    folder = Path(tempfile.mkdtemp(prefix="ncp-"))  # the path of a socket has to be short
    server, url = start_postgres(folder)
    database = Database(url, pooled=False)

    def up() -> bool:
        assert server.poll() is None, (folder / "log").read_text()
        try:
            with database.read():
                return True
        except DatabaseUnavailable:
            return False

    try:
        wait_until(up, 120, "PostgreSQL")
        yield url
    finally:
        server.send_signal(signal.SIGINT)  # "fast": does not wait for connections somebody forgot
        server.wait()
        shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "postgresql"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    """An empty database of each kind, with a store."""
    url = ""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
        wipe(url)
    made = Desk(tmp_path, url)
    yield made
    made.close()


@pytest.fixture
def sqlite_desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


def wipe(url: str) -> None:
    from sqlalchemy import text

    from worker.database.engine import Database

    database = Database(url, pooled=False)
    with database.write() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()
