"""One job from claim to commit, with a real child process that does what the test says."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.service_kit import Desk, alive, can_mount, small_disk, wait_until
from worker.database import submit
from worker.supervise import run_job


def place_of(desk: Desk, job_id: str, name: str = "") -> Path:
    return desk.settings.store_dir / "artifacts" / job_id / str(desk.row(job_id).published_fence) / name


def leftovers(desk: Desk) -> list[Path]:
    scratch = desk.settings.scratch_dir
    return list(scratch.iterdir()) if scratch.exists() else []


def test_a_good_run_publishes_everything_at_once(desk: Desk) -> None:
    job = desk.job(["warn", "careful"], ["stderr", "hello from the engine"])
    assert run_job(desk.station(), job) == "succeeded"
    row = desk.row(job)
    assert (row.state, row.verdict, row.summary["nodes"]) == ("SUCCEEDED", "pass", 3)
    names = {one.name for one in place_of(desk, job).iterdir()}
    assert names == {
        "m-fp16.onnx", "m-fp16.onnx.data", "report.json", "report.html", "junit.xml", "layers.csv", "report.md",
        "node-data.json", "layers.sqlite",
    }  # fmt: skip
    kinds = [(one.kind, one.body.get("stage") or one.body.get("message")) for one in desk.events(job)]
    stages = [what for kind, what in kinds if kind == "progress"]
    assert list(dict.fromkeys(stages)) == [
        "fetch", "load", "observe", "decide", "rewrite", "compare", "judge", "build", "publish",
    ]  # fmt: skip
    assert ("warning", "careful") in kinds
    attempt = desk.attempts(job)[0]
    assert attempt.outcome == "SUCCEEDED"
    assert attempt.peak_rss > 2**20
    assert "hello from the engine" in attempt.log
    assert leftovers(desk) == []


def test_a_failed_verdict_is_a_success_of_the_run(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["verdict", "fail"])
    assert run_job(sqlite_desk.station(), job) == "succeeded"
    assert sqlite_desk.row(job).verdict == "fail"


def test_a_duplicate_delivery_is_skipped(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job()
    station = sqlite_desk.station()
    assert [run_job(station, job) for _ in range(3)] == ["succeeded", "skipped", "skipped"]


@pytest.mark.parametrize(
    ("step", "code", "attempts", "status"),
    [
        (["error", "INPUT_MISMATCH"], "INPUT_MISMATCH", 1, 2),
        (["error", "MODEL_PARSE_ERROR"], "MODEL_PARSE_ERROR", 1, 2),
        (["error", "INTERNAL"], "INTERNAL", 1, 3),
        (["error", "ENVIRONMENT"], "ENVIRONMENT", 3, 3),
        (["crash", 11], "RUNTIME_CRASH", 3, 3),
        (["exit", 0], "RUNTIME_CRASH", 3, 3),
        (["exit", 7], "RUNTIME_CRASH", 3, 3),
    ],
)
def test_errors_are_retried_by_their_branch_and_end(
    sqlite_desk: Desk, step: list[Any], code: str, attempts: int, status: int
) -> None:
    job = sqlite_desk.job(["node", "layer/7"], step)
    station = sqlite_desk.station()
    outcomes = [run_job(station, job) for _ in range(5)]
    assert outcomes == ["failed"] * attempts + ["skipped"] * (5 - attempts)
    row = sqlite_desk.row(job)
    assert (row.state, row.error["code"], row.error["exit_status"]) == ("FAILED", code, status)
    assert row.error["node"] == "layer/7"
    assert row.error["stage"] == "compare"
    assert row.published_fence is None
    assert not (sqlite_desk.settings.store_dir / "artifacts" / job).exists()


def test_a_crash_names_signal_and_node(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["node", "block/conv"], ["crash", 11])
    run_job(sqlite_desk.station(), job)
    attempt = sqlite_desk.attempts(job)[0]
    assert (attempt.outcome, attempt.signal, attempt.node) == ("RUNTIME_CRASH", 11, "block/conv")


def test_too_much_memory_is_tried_twice_and_measured(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["eat", 300 * 2**20])
    station = sqlite_desk.station(memory_limit_bytes=100 * 2**20)
    assert [run_job(station, job) for _ in range(3)] == ["failed", "failed", "skipped"]
    row = sqlite_desk.row(job)
    assert row.error["code"] == "OUT_OF_MEMORY"
    assert "100 MiB" in row.error["detail"]
    assert 100 * 2**20 < sqlite_desk.attempts(job)[0].peak_rss < 300 * 2**20


def test_a_hanging_run_ends_at_its_deadline_though_it_ignores_sigterm(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["hang"], deadline_s=0.5)
    start = time.monotonic()
    assert run_job(sqlite_desk.station(), job) == "failed"
    assert time.monotonic() - start < 5
    row = sqlite_desk.row(job)
    assert (row.state, row.error["code"]) == ("FAILED", "DEADLINE_EXCEEDED")


def test_grandchildren_in_the_group_do_not_hold_up_the_end(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["fork"])
    start = time.monotonic()
    assert run_job(sqlite_desk.station(), job) == "succeeded"
    assert time.monotonic() - start < 10


def test_a_cancelled_run_is_stopped(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["sleep", 30])
    station = sqlite_desk.station()
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(run_job(station, job)))
    thread.start()
    wait_until(lambda: sqlite_desk.row(job).stage == "compare")
    with sqlite_desk.database.write() as connection:
        submit.request_cancel(connection, "default", job, 1e6)
    thread.join(10)
    assert outcome == ["canceled"]
    assert sqlite_desk.row(job).state == "CANCELED"
    assert leftovers(sqlite_desk) == []


def test_a_lost_lease_kills_the_run(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["sleep", 30])
    station = sqlite_desk.station()
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(run_job(station, job)))
    thread.start()
    wait_until(lambda: sqlite_desk.row(job).stage == "compare")
    from sqlalchemy import update

    from worker.database.tables import jobs

    with sqlite_desk.database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == job).values(fence=jobs.c.fence + 1))
    thread.join(10)
    assert outcome == ["fenced"]
    assert sqlite_desk.row(job).state == "RUNNING", "the other worker's"


def test_a_file_outside_the_folder_is_not_published(sqlite_desk: Desk, tmp_path: Path) -> None:
    engine = tmp_path / "liar.py"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    engine.write_text(
        "import json, sys, pathlib\n"
        "folder = pathlib.Path(sys.stdin.readline().strip())\n"
        "request = json.loads((folder / 'request.json').read_text())\n"
        f"out = pathlib.Path(request['output']); out.symlink_to({str(secret)!r})\n"
        "pathlib.Path(request['report']).write_text('{}')\n"
        "print(json.dumps({'event': 'result', 'verdict': 'pass', 'exit_status': 0,"
        " 'files': {'model': [str(out)], 'report': request['report']}}), flush=True)\n"
    )
    import sys

    job = sqlite_desk.job()
    station = sqlite_desk.station(child_command=(sys.executable, str(engine)))
    assert run_job(station, job) == "failed"
    row = sqlite_desk.row(job)
    assert (row.state, row.error["code"]) == ("FAILED", "INTERNAL")
    assert "no file in its folder" in row.error["detail"]
    assert secret.read_text() == "secret"


def test_a_missing_blob_is_the_environments_fault(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job()
    for path in (sqlite_desk.settings.store_dir / "blobs").rglob("*-*"):
        path.unlink()
    run_job(sqlite_desk.station(), job)
    assert sqlite_desk.attempts(job)[0].outcome == "ENVIRONMENT"


def test_the_request_holds_paths_and_all_options(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job()
    run_job(sqlite_desk.station(), job)
    summary = sqlite_desk.row(job).summary
    assert set(summary["seen_options"]) == {
        "to", "io_types", "overflow", "optimise", "keep_fp32", "policy", "tolerance", "max_rel_l2", "min_sqnr_db",
        "target", "provider", "emulate", "search", "repair", "validate", "metrics", "dynamic", "seed",
    }  # fmt: skip
    assert [Path(one).name for one in summary["seen_samples"]] == ["0000-b.npz"]


def test_the_report_is_valid(sqlite_desk: Desk) -> None:
    from converter.report import read_report

    job = sqlite_desk.job(["layers", 5])
    run_job(sqlite_desk.station(), job)
    assert len(read_report(place_of(sqlite_desk, job, "report.json"))["layers"]) == 5


def test_a_prepared_child_waits_for_its_job(sqlite_desk: Desk) -> None:
    station = sqlite_desk.station()
    station.runner.prepare()
    prepared = station.runner._prepared
    assert prepared is not None
    pid = prepared.pid
    time.sleep(0.3)
    assert alive(pid)
    job = sqlite_desk.job()
    assert run_job(station, job) == "succeeded"
    assert not alive(pid), "one child, one request"


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
@pytest.mark.parametrize("which", ["work", "store"])
def test_a_full_disk_fails_the_job_and_leaves_nothing(tmp_path: Path, which: str) -> None:
    with small_disk("16m") as full:
        if which == "work":
            desk = Desk(tmp_path, work_dir=full)
        else:
            (tmp_path / "store").symlink_to(full)
            desk = Desk(tmp_path, work_dir=tmp_path / "work")
        job = desk.job(["fill", 32 * 2**20]) if which == "work" else desk.job(model=b" " * (9 * 2**20) + b"{}")
        station = desk.station()
        outcomes = [run_job(station, job) for _ in range(3)]
        assert outcomes == ["failed"] * 3
        row = desk.row(job)
        assert (row.state, row.error["code"]) == ("FAILED", "DISK_FULL")
        assert list(full.glob("artifacts/*/*")) == []
        assert list(full.glob("aside/*")) == []
        small = desk.job()
        assert run_job(station, small) == "succeeded", "the worker goes on by itself"
        desk.close()


def test_json_of_the_summary_survives(sqlite_desk: Desk) -> None:
    job = sqlite_desk.job(["layers", 1])
    run_job(sqlite_desk.station(), job)
    assert json.loads(json.dumps(sqlite_desk.row(job).summary))["nodes"] == 1
