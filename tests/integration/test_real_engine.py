"""The real engine behind a real service: what comes back is what ``narrowcast convert`` writes, byte for byte."""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.integration.test_separate import NARROWCAST, apart
from tests.integration.test_serve import Served
from tests.service_kit import ROOT

PATIENT: dict[str, Any] = {"child_command": [], "lease_s": 60.0, "beat_s": 5.0}
"""The engine itself, and a lease that a busy machine does not lose."""


def make_model(path: Path, *, width: int = 64, scale: float = 1.0) -> Path:
    """One Gemm and a Softmax, with its weights outside."""
    weight = np.random.default_rng(width).normal(size=(width, width), scale=scale).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], "dense"), helper.make_node("Softmax", ["h"], ["y"], "softmax")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save_model(model, path, save_as_external_data=True, location=f"{path.stem}.data", size_threshold=0)
    return path


@dataclass
class Case:
    """A model, its batch, and what the local command makes of it."""

    folder: Path
    model: Path
    batch: Path
    converted: Path
    report: dict[str, Any]


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("case")
    model, batch = make_model(folder / "tiny.onnx"), folder / "batch.npz"
    np.savez(batch, x=np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32))
    made, report = folder / "local" / "tiny-fp16.onnx", folder / "local.json"
    made.parent.mkdir()
    subprocess.run([*NARROWCAST, "convert", model, "--samples", batch, "--to", "fp16", "--output", made, "--report",
                    report, "--quiet"], cwd=ROOT, check=True)  # fmt: skip
    return Case(folder, model, batch, made, json.loads(report.read_bytes()))


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    served = Served(tmp_path_factory.mktemp("embedded"), **PATIENT)
    try:
        yield served.start().url
    finally:
        served.process.stop()


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[str]:
    """``serve-api`` and ``serve-worker`` with REDIS_URL and DATABASE_URL."""
    with apart(tmp_path_factory.mktemp("separate"), postgres_url, **PATIENT) as url:
        yield url


@pytest.fixture(params=["embedded", "separate"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def submit(url: str, folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    variables = {"NARROWCAST_URL": url, "XDG_CACHE_HOME": str(folder), "PATH": "/usr/bin:/bin"}
    command = [*NARROWCAST, "submit", *map(str, arguments)]
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)


def without_timings(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name != "timings"}


def test_one_curl(url: str, case: Case) -> None:
    done = subprocess.run(
        ["curl", "-sS", "-H", "Prefer: wait=60", "-F", f"model=@{case.model}", "-F",
         f"model=@{case.model.with_suffix('.data')}", "-F", f"samples=@{case.batch}", "-F", "to=fp16",
         f"{url}/v1/jobs"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    job = json.loads(done.stdout)
    assert (job["state"], job["verdict"]) == ("SUCCEEDED", "pass"), job
    here = f"{url}/v1/jobs/{job['id']}"
    assert httpx2.get(f"{here}/artifacts/tiny-fp16.onnx").content == case.converted.read_bytes()
    for one in httpx2.get(f"{here}/artifacts").json()["items"]:
        if one["role"] == "data":
            data = case.converted.parent / one["name"]
            assert httpx2.get(url + one["href"]).content == data.read_bytes()
    report = httpx2.get(f"{here}/report").json()
    assert without_timings(report) == without_timings(case.report)
    assert httpx2.get(f"{here}/layers").json()["items"] == report["layers"]


def test_one_submit(url: str, case: Case, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    done = submit(url, tmp_path, case.model, "--samples", case.batch, "--to", "fp16", "--output", out, "--report",
                  report, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    job = json.loads(done.stdout)["jobs"][0]["job"]
    assert (job["state"], job["verdict"]) == ("SUCCEEDED", "pass")
    assert out.read_bytes() == case.converted.read_bytes()
    onnx.checker.check_model(str(out), full_check=True)
    assert without_timings(json.loads(report.read_bytes())) == without_timings(case.report)


def test_a_pipeline_with_a_failure_and_a_refusal(url: str, case: Case, tmp_path: Path) -> None:
    """The worst exit status of each kind, and a JUnit file that says which model it was."""
    steep = make_model(tmp_path / "steep.onnx", scale=30.0)  # its outputs are 0 and 1, in FP16 too
    junit, out = tmp_path / "all.xml", tmp_path / "out"
    pair = (case.model, steep, "--samples", case.batch, "--max-rel-l2", "0.001")
    done = submit(url, tmp_path, *pair, "--no-repair", "--junit", junit, "--output", out)
    assert done.returncode == 1, done.stderr + done.stdout
    suite = ET.parse(junit).getroot()[0]
    assert [(one.get("name"), [child.tag for child in one]) for one in suite] == [
        ("tiny.onnx", ["failure"]), ("steep.onnx", []),
    ]  # fmt: skip
    assert {"tiny-fp16.onnx", "steep-fp16.onnx"} <= {one.name for one in out.iterdir()}
    narrow = make_model(tmp_path / "narrow.onnx", width=8)
    done = submit(url, tmp_path, case.model, narrow, "--samples", case.batch, "--junit", junit)
    assert done.returncode == 2, done.stderr + done.stdout
    assert "INPUT_MISMATCH" in done.stdout
    suite = ET.parse(junit).getroot()[0]
    assert [[child.tag for child in one] for one in suite] == [[], ["error"]]
