from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service_kit import Desk, free_port


def start_postgres(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A PostgreSQL server of the test's own; run by another user where we are root, which it refuses to be."""
    user = pwd.getpwuid(os.getuid()).pw_name
    extra = {}
    if os.getuid() == 0:
        other = pwd.getpwnam("postgres")
        extra = {"user": other.pw_uid, "group": other.pw_gid, "extra_groups": []}
        os.chown(folder, other.pw_uid, other.pw_gid)
        for one in (folder, *folder.parents):
            if one != Path("/"):
                one.chmod(one.stat().st_mode | 0o055)
        user = "postgres"
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    subprocess.run(["initdb", "-D", folder / "pg", "-U", user, "-A", "trust", "--no-sync"], check=True,
                   capture_output=True, env=environment, cwd="/", **extra)  # fmt: skip
    port = free_port()
    server = subprocess.Popen(
        ["postgres", "-D", folder / "pg", "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1",
         "-c", "fsync=off", "-c", "max_connections=200"],
        env=environment, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **extra,
    )  # fmt: skip
    return server, f"postgresql://{user}@127.0.0.1:{port}/postgres"


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if shutil.which("initdb") is None or shutil.which("postgres") is None:
        pytest.skip("no PostgreSQL server program on PATH")
    from tests.service_kit import wait_until
    from worker.database.engine import Database, DatabaseUnavailable

    server, url = start_postgres(tmp_path_factory.mktemp("postgres"))
    database = Database(url, pooled=False)

    def up() -> bool:
        try:
            with database.read():
                return True
        except DatabaseUnavailable:
            return False

    try:
        wait_until(up, 20, "PostgreSQL")
        yield url
    finally:
        server.terminate()
        server.wait()


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
