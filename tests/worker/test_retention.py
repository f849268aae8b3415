"""What expires goes, what is needed stays."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError

from tests.service_kit import Desk
from worker.contract import ModelFile
from worker.database import contents, submit
from worker.database.tables import blobs, jobs, uploads
from worker.retention import clear
from worker.supervise import run_job


def files(desk: Desk, prefix: str) -> list[str]:
    return sorted(path.name for path in (desk.settings.store_dir / prefix).rglob("*") if path.is_file())


def sweep_out(desk: Desk, **changes: float) -> None:
    settings = desk.settings.model_copy(update={"keep_blobs_s": 0.0, "orphan_age_s": 3600.0, **changes})
    clear(desk.database, desk.storage, settings)


def test_a_blob_nobody_refers_to_goes_with_its_file(desk: Desk) -> None:
    digest = desk.blob(b"lonely")
    sweep_out(desk, keep_blobs_s=1000.0)
    assert files(desk, "blobs"), "its holder used it just now"
    sweep_out(desk)
    assert files(desk, "blobs") == []
    with desk.database.read() as connection:
        assert contents.find_blob(connection, digest) is None


def test_blobs_of_models_batches_and_open_jobs_stay(desk: Desk) -> None:
    digest = desk.blob(b"weights")
    with desk.database.write() as connection:
        file = ModelFile("m.onnx", digest, 7)
        contents.insert_model(connection, "default", "m.onnx", "onnx", [file])
    job = desk.job()
    sweep_out(desk)
    assert len(files(desk, "blobs")) == 3
    run_job(desk.station(), job)
    sweep_out(desk)
    assert len(files(desk, "blobs")) == 1, "the job has ended, the model is still there"
    sweep_out(desk, keep_models_s=0.0)
    assert files(desk, "blobs") == []


def test_collecting_while_jobs_start_never_takes_a_blob_away(desk: Desk) -> None:
    """F27: either the job gets the blob, or it is told that the blob is gone; never a job without its file."""
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            sweep_out(desk)

    thread = threading.Thread(target=collect)
    thread.start()
    started = []
    try:
        for number in range(30):
            with contextlib.suppress(IntegrityError):  # "that blob is gone"
                started.append(desk.job(["layers", number]))
    finally:
        stop.set()
        thread.join()
    assert started
    station = desk.station()
    assert {run_job(station, job) for job in started} == {"succeeded"}


def test_files_of_old_jobs_go_before_their_records(desk: Desk) -> None:
    job = desk.job()
    run_job(desk.station(), job)
    pinned = desk.job()
    run_job(desk.station(), pinned)
    with desk.database.write() as connection:
        submit.pin(connection, "default", pinned, True)
        connection.execute(update(jobs).values(artifacts_until=0.0))
    sweep_out(desk)
    assert desk.row(job).published_fence is None
    assert not (desk.settings.store_dir / "artifacts" / job).exists()
    assert (desk.settings.store_dir / "artifacts" / pinned).exists()
    with desk.database.write() as connection:
        connection.execute(update(jobs).values(expires_at=0.0))
    sweep_out(desk)
    assert desk.row(job) is None
    assert desk.row(pinned) is not None


def test_files_without_a_row_go_when_they_are_old(desk: Desk) -> None:
    job = desk.job()
    run_job(desk.station(), job)
    orphan = desk.settings.store_dir / "artifacts" / job / "9"
    orphan.mkdir()
    (orphan / "x").write_bytes(b"x")
    stray = desk.settings.store_dir / "blobs" / "ab" / ("ab" * 32 + "-1234")
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"x")
    lost = desk.settings.uploads_dir / "upl_lost"
    lost.write_bytes(b"x")
    workplace = desk.settings.scratch_dir / "job_x-1"
    workplace.mkdir(parents=True)
    sweep_out(desk)
    assert orphan.exists(), "young: perhaps somebody is about to record it"
    sweep_out(desk, orphan_age_s=0.0)
    assert [path.exists() for path in (orphan, stray, lost, workplace)] == [False] * 4
    assert (desk.settings.store_dir / "artifacts" / job / "1").exists()


def test_expired_uploads_go(desk: Desk) -> None:
    with desk.database.write() as connection:
        row = contents.insert_upload(connection, "default", 10, None, "x", -1.0)
    path: Path = desk.settings.uploads_dir / row.id
    path.write_bytes(b"12345")
    sweep_out(desk)
    assert not path.exists()
    with desk.database.read() as connection:
        assert connection.execute(select(uploads)).all() == []


def test_equal_content_is_stored_once(desk: Desk) -> None:
    first, second = desk.blob(b"same", "a"), desk.blob(b"same", "b")
    assert first == second == hashlib.sha256(b"same").hexdigest()
    with desk.database.read() as connection:
        assert len(connection.execute(select(blobs)).all()) == 1
        assert contents.sees_blob(connection, "a", first) is not None
        assert contents.sees_blob(connection, "c", first) is None
