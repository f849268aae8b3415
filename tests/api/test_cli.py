"""The client's commands as scripts use them: exit codes, one JSON object on stdout, one table, one JUnit file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.commands.output import WORST_FIRST, clean, worst
from tests.service_kit import ROOT, Stack, npz, script


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("cli")) as one:
        yield one


@pytest.fixture
def run(stack: Stack, tmp_path: Path) -> Any:
    (tmp_path / "b.npz").write_bytes(npz())

    def go(*arguments: str, status: int, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**stack.environment, "NARROWCAST_URL": stack.url, "XDG_CACHE_HOME": str(tmp_path), **variables}
        done = subprocess.run(
            [sys.executable, "-m", "api.cli", *arguments], capture_output=True, text=True, check=False, cwd=ROOT,
            env=environment,
        )  # fmt: skip
        assert done.returncode == status, (done.stdout, done.stderr)
        return done

    return go


def model(folder: Path, name: str, *steps: Any) -> str:
    (folder / name).write_bytes(script(*steps))
    return str(folder / name)


def test_one_model_to_its_files(run: Any, tmp_path: Path) -> None:
    out, report, html = (tmp_path / name for name in ("out.onnx", "out.json", "out.html"))
    done = run(
        "submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "b.npz"), "--output", str(out),
        "--report", str(report), "--html", str(html), status=0,
    )  # fmt: skip
    assert "SUCCEEDED" in done.stdout
    assert out.read_bytes() == script()
    assert (tmp_path / "m-fp16.onnx.data").exists(), "the data file keeps the name that the model knows"
    assert json.loads(report.read_bytes())["verdict"]["status"] == "pass"
    assert html.exists()


def test_programs_are_not_handed_back_by_the_service(run: Any, tmp_path: Path) -> None:
    done = run("submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "b.npz"),
               "--output", str(tmp_path / "out.pt2"), status=2)  # fmt: skip
    assert "--output out.pt2 asks for a PyTorch program, and the service makes ONNX models; give a name" in done.stderr
    assert not (tmp_path / "out.pt2").exists()


def test_a_pipeline_of_models(run: Any, tmp_path: Path) -> None:
    models = [
        model(tmp_path, "good.onnx"),
        model(tmp_path, "weak.onnx", ["verdict", "fail"]),
        model(tmp_path, "wrong.onnx", ["error", "INPUT_MISMATCH"]),
        model(tmp_path, "broken.onnx", ["error", "INTERNAL"]),
        str(tmp_path / "pickle.onnx"),
    ]
    (tmp_path / "pickle.onnx").write_bytes(b"\x80\x04 refused before there is a job")
    junit = tmp_path / "all.xml"
    done = run("submit", *models, "--samples", str(tmp_path / "b.npz"), "--junit", str(junit),
               "--output", str(tmp_path / "out"), status=3)  # fmt: skip
    assert [Path(one).name in done.stdout for one in models] == [True] * 5
    suite = ET.parse(junit).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "3")
    assert "UNSAFE_CONTENT" in str(suite[4][0].get("message"))
    assert sorted(one.name for one in (tmp_path / "out").iterdir() if one.suffix == ".onnx") == [
        "good-fp16.onnx", "weak-fp16.onnx",
    ]  # fmt: skip
    run("submit", *models[:3], "--samples", str(tmp_path / "b.npz"), "--wait", "--quiet", status=2)
    run("submit", *models[:2], "--samples", str(tmp_path / "b.npz"), "--wait", "--quiet", status=1)


def test_json_is_one_object_and_nothing_else(run: Any, tmp_path: Path) -> None:
    done = run("submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "b.npz"), "--wait", "--json", status=0)
    body = json.loads(done.stdout)
    job = body["jobs"][0]["job"]["id"]
    assert (body["exit_status"], body["jobs"][0]["job"]["verdict"]) == (0, "pass")
    assert json.loads(run("jobs", job, "--json", status=0).stdout)["id"] == job
    assert json.loads(run("jobs", "--json", "--limit", "1", status=0).stdout)["jobs"][0]["id"] == job
    assert json.loads(run("wait", job, "--json", status=0).stdout)["exit_status"] == 0
    files = json.loads(run("download", job, "-o", str(tmp_path / "d"), "--role", "csv", "--json", status=0).stdout)
    assert files == {"files": [str(tmp_path / "d" / "layers.csv")]}
    refused = json.loads(run("cancel", job, "--json", status=2).stdout)
    assert "CONFLICT" in refused["errors"][0]["error"]


def test_waiting_and_cancelling(run: Any, stack: Stack, tmp_path: Path) -> None:
    job = stack.submit(["sleep", 30])
    stack.wait_stage(job, "compare")
    done = run("wait", job, "--timeout", "0.3", status=5)
    assert "still RUNNING" in done.stderr
    run("download", job, status=5)
    run("cancel", job, status=0)
    stack.wait_end(job)
    run("wait", job, status=6)
    run("download", job, status=6)


def test_ctrl_c_says_how_to_go_on(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "b.npz").write_bytes(npz())
    started = subprocess.Popen(
        [sys.executable, "-m", "api.cli", "submit", model(tmp_path, "m.onnx", ["sleep", 20]), "--samples",
         str(tmp_path / "b.npz"), "--wait"],
        env={**stack.environment, "NARROWCAST_URL": stack.url, "XDG_CACHE_HOME": str(tmp_path)}, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stderr is not None
    job = started.stderr.readline().split()[-1]
    stack.wait_stage(job, "compare")
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 130, stderr
    assert f"narrowcast wait {job}" in stderr
    assert f"narrowcast cancel {job}" in stderr
    stack.http.post(f"/v1/jobs/{job}/cancel")
    stack.wait_end(job)


def test_refusals_before_anything_is_sent(run: Any, tmp_path: Path) -> None:
    done = run("submit", model(tmp_path, "m.onnx"), status=2)
    assert "--no-validate" in done.stderr
    done = run("submit", str(tmp_path / "none.onnx"), "--samples", str(tmp_path / "b.npz"), status=2)
    assert "there is no model at" in done.stderr
    done = run("submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "nope.npz"), status=2)
    assert "there is no batch at" in done.stderr
    run("submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "b.npz"), "--nonsense", status=2)
    run("submit", status=2)
    (tmp_path / "other").mkdir()
    twins = (model(tmp_path, "m.onnx"), model(tmp_path / "other", "m.onnx"))
    done = run("submit", *twins, "--samples", str(tmp_path / "b.npz"), "--output", str(tmp_path / "o"), status=2)
    assert "two of the models are called 'm'" in done.stderr
    os.mkfifo(tmp_path / "pipe")
    for option in ("--output", "--report", "--html", "--junit"):
        done = run("submit", twins[0], "--samples", str(tmp_path / "b.npz"), option, str(tmp_path / "pipe"), status=2)
        assert "pipe is no file" in done.stderr
    done = run("submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "b.npz"), "--to", "fp8", status=2)
    assert "/options/to" in done.stderr
    done = run("submit", model(tmp_path, "m.onnx"), "--samples", str(tmp_path / "b.npz"), "--tolerance", "x", status=2)
    assert "neither a file nor one of" in done.stderr


def test_an_absent_service(run: Any) -> None:
    done = run("jobs", status=4, NARROWCAST_URL="http://127.0.0.1:9")
    assert "no answer from http://127.0.0.1:9" in done.stderr


def test_option_files_are_sent_along(run: Any, stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("{}")
    done = run("submit", model(tmp_path, "m.onnx", ["layers", 2]), "--samples", str(tmp_path / "b.npz"), "--policy",
               str(tmp_path / "policy.json"), "--keep-fp32", "a*", "--tolerance", "strict", "--wait", "--json",
               "--label", "a=b", status=0)  # fmt: skip
    job = json.loads(done.stdout)["jobs"][0]["job"]
    seen = job["summary"]["seen_options"]
    assert (seen["keep_fp32"], seen["tolerance"], job["labels"]) == (["a*"], "strict", {"a": "b"})
    assert seen["policy"].endswith("policy-policy.json")


@pytest.mark.parametrize(
    ("statuses", "result"),
    [([0, 0], 0), ([0, 1], 1), ([1, 2], 2), ([2, 6], 6), ([6, 5], 5), ([5, 4], 4), ([4, 3, 0], 3), ([], 0)],
)
def test_the_worst_exit_status(statuses: list[int], result: int) -> None:
    assert worst(statuses) == result
    assert WORST_FIRST == (3, 4, 5, 6, 2, 1, 0)


@pytest.mark.parametrize("text", ["\x1b]8;;http://evil\x07x", "a\u202eb", "a\x00b\x9b31m"])
def test_names_do_not_reach_the_terminal_raw(text: str) -> None:
    assert not [one for one in clean(text) if ord(one) < 32 or one in "\u202e\x9b\x7f"]
