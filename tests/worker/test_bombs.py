"""Batches that are small to send and huge to read: they cost their own run and nothing else."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.integration.test_real_engine import make_model
from tests.service_kit import Desk
from worker.contract import JobSpec, ModelFile, SampleBatch
from worker.database import submit
from worker.supervise import Station, run_job

LIMIT = 700 * 2**20


def header(*shape: int) -> bytes:
    """The first bytes of an .npy of FP32."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def archive(content: bytes, zeros: int = 0) -> bytes:
    """An .npz with one member: the content and so many zeros behind it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as made, made.open("x.npy", "w", force_zip64=True) as file:
        file.write(content)
        for _ in range(zeros // 2**24):
            file.write(bytes(2**24))
    return stream.getvalue()


@pytest.fixture
def bench(sqlite_desk: Desk) -> Station:
    """The real engine with little memory."""
    return sqlite_desk.station(child_command=(), memory_limit_bytes=LIMIT, retry_delays_s=(0.0,))


@pytest.mark.parametrize(
    ("batch", "code", "attempts"),
    [
        (archive(header(2**29 // 64, 64), 2**31), "OUT_OF_MEMORY", 2),
        (archive(header(10**11, 64) + b"abc"), "OUT_OF_MEMORY", 2),
        (archive(header(2**62)), "INPUT_MISMATCH", 1),
        (archive(header(4, 64) + b"abc"), "INPUT_MISMATCH", 1),
    ],
    ids=["2 GiB of zeros", "a huge shape", "an impossible shape", "too few bytes"],
)
def test_a_bomb(sqlite_desk: Desk, bench: Station, tmp_path: Path, batch: bytes, code: str, attempts: int) -> None:
    assert len(batch) < 4 * 2**20
    model = make_model(tmp_path / "tiny.onnx")
    parts = [(one.name, one.read_bytes()) for one in (model, model.with_suffix(".data"))]
    files = tuple(ModelFile(name, sqlite_desk.blob(content), len(content)) for name, content in parts)
    samples = (SampleBatch("inp_x", "b.npz", sqlite_desk.blob(batch), len(batch)),)
    spec = JobSpec("mdl_x", "tiny.onnx", files, samples, {"to": "fp16"})
    with sqlite_desk.database.write() as connection:
        new = submit.NewJob("default", "tiny.onnx", "cpu", spec, 120.0, {})
        job = str(submit.insert_job(connection, new).id)
    for _ in range(attempts):
        assert run_job(bench, job) == "failed"
    row = sqlite_desk.row(job)
    assert (row.state, row.error["code"], row.attempts) == ("FAILED", code, attempts), row.error
    assert list(sqlite_desk.settings.scratch_dir.iterdir()) == []
