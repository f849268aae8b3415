"""Models with external data: the streamed result equals the in-memory one, over the old files and after a crash."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import converter
from benchmarks.make_model import deep, transformer


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "model.onnx"
    transformer(path, 0.03, 18, 0, holes=False)
    return path


def weights(path) -> dict[str, tuple[int, bytes]]:
    model = onnx.load(path)
    return {t.name: (t.data_type, onnx.numpy_helper.to_array(t).tobytes()) for t in model.graph.initializer}


@pytest.mark.parametrize("to", ["fp16", "bf16"])
def test_streamed_equals_in_memory(given, tmp_path, to):
    inline = onnx.load(given)
    streamed = converter.convert(given, to=to, validate=False, output=tmp_path / "streamed.onnx")
    whole = converter.convert(inline, to=to, validate=False, output=tmp_path / "whole.onnx")
    assert len(streamed.files) == 2
    assert len(whole.files) == 1
    assert weights(streamed.files[0]) == weights(whole.files[0])
    assert streamed.report.decisions == whole.report.decisions
    onnx.checker.check_model(streamed.files[0], full_check=True)


def test_output_may_be_the_model_itself(given, tmp_path):
    expected = converter.convert(given, to="fp16", validate=False, output=tmp_path / "apart.onnx")
    for name in ("model.onnx", "model.data"):
        (tmp_path / name).write_bytes(given.with_name(name).read_bytes())
    done = converter.convert(tmp_path / "model.onnx", to="fp16", validate=False, output=tmp_path / "model.onnx")
    assert weights(done.files[0]) == weights(expected.files[0])


def test_run_that_is_killed_leaves_nothing(given, tmp_path):
    target = tmp_path / "out.onnx"
    script = (
        "import sys, time, converter; from converter.rewrite import stream\n"
        "write = stream._Job._write\n"
        "def slow(job, content, target):\n"
        "    write(job, content, target); print('writing', flush=True); time.sleep(0.2)\n"
        "stream._Job._write = slow\n"
        f"converter.convert({str(given)!r}, to='fp16', validate=False, output={str(target)!r})\n"
    )
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=root) as running:
        assert running.stdout is not None
        assert b"writing" in running.stdout.readline()
        running.kill()
    time.sleep(0.1)
    assert list(tmp_path.iterdir()) == []


def test_generated_models_are_valid_and_run(tmp_path, given):
    chain = tmp_path / "deep.onnx"
    deep(chain, 60, 18, 0)
    for path in (given, chain):
        onnx.checker.check_model(path, full_check=True)
        with np.load(path.with_suffix(".npz")) as batch:
            done = converter.convert(path, [dict(batch)], to="bf16")
        assert done.report.verdict.status in ("pass", "fail")
        assert done.report.summary.narrow_nodes > 0
