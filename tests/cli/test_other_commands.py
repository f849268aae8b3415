"""validate, inspect, report, formats, and the list of commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import converter
from tests.cli.command import environment, names, narrowcast, write
from tests.models.build import model
from tests.models.tiny import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a batch, a converted model and its report; tests add files of their own."""
    found = tmp_path_factory.mktemp("commands")
    given = tiny("mlp")
    write(found, given.model(), **given.feeds(np.random.default_rng(0)))
    ended = narrowcast(found, "convert", "model.onnx", "--samples", "batch.npz", "--report", "r.json", "--quiet")
    assert ended.status == 0
    return found


class TestValidate:
    def test_two_models(self, folder: Path) -> None:
        ended = narrowcast(folder, "validate", "model.onnx", "model.fp16.onnx", "--samples", "batch.npz", "--json",
                           "--report", "v.json")  # fmt: skip
        assert (ended.status, ended.err) == (0, "")
        assert ended.json["verdict"]["status"] == "pass"
        converted = json.loads((folder / "r.json").read_text())
        validated = json.loads((folder / "v.json").read_text())
        assert validated["outputs"][0]["rel_l2_error"] == converted["outputs"][0]["rel_l2_error"]

    def test_a_bf16_candidate_has_the_tolerance_of_bf16(self, folder: Path) -> None:
        assert (
            narrowcast(folder, "convert", "model.onnx", "--samples", "batch.npz", "--to", "bf16", "--quiet").status == 0
        )
        ended = narrowcast(folder, "validate", "model.onnx", "model.bf16.onnx", "--samples", "batch.npz", "--report",
                           "b.json")  # fmt: skip
        assert ended.status == 0
        assert json.loads((folder / "b.json").read_text())["request"]["tolerance"]["name"] == "bf16-default"

    def test_a_candidate_that_is_not_good_enough(self, folder: Path) -> None:
        ended = narrowcast(folder, "validate", "model.onnx", "model.fp16.onnx", "--samples", "batch.npz",
                           "--max-rel-l2", "1e-9")  # fmt: skip
        assert ended.status == 1
        assert ended.out.startswith("FAIL")

    def test_models_that_do_not_belong_together(self, folder: Path) -> None:
        onnx.save(model("g (float[2] x) => (float[2] z) { z = Relu(x) }"), folder / "other.onnx")
        ended = narrowcast(folder, "validate", "model.onnx", "other.onnx", "--samples", "batch.npz")
        assert (ended.status, ended.out) == (2, "")
        assert ended.err == (
            "narrowcast: the candidate's outputs are ['z'], the reference's ['y']; they must be the same\n"
        )

    def test_without_samples(self, folder: Path) -> None:
        ended = narrowcast(folder, "validate", "model.onnx", "model.fp16.onnx")
        assert (ended.status, ended.err) == (
            2, "narrowcast: no sample batch was given; pass --samples FILE.npz\n",
        )  # fmt: skip


class TestInspect:
    def test_without_samples(self, folder: Path) -> None:
        ended = narrowcast(folder, "inspect", "model.onnx", "--json")
        assert (ended.status, ended.err) == (0, "")
        assert ended.json["model"]["name"] == "model.onnx"
        assert ended.json["recommendation"]["format"] == "unknown"
        assert ended.json["values"] == []

    def test_with_samples(self, folder: Path) -> None:
        ended = narrowcast(folder, "inspect", "model.onnx", "--samples", "batch.npz")
        assert (ended.status, ended.err) == (0, "")
        assert "recommended: fp16" in ended.out
        assert str(folder) not in ended.out


class TestReport:
    @pytest.mark.parametrize(("view", "start"), [("csv", "value,node,op_type,"), ("html", "<!doctype html>")])
    def test_views(self, folder: Path, view: str, start: str) -> None:
        ended = narrowcast(folder, "report", "r.json", "--format", view)
        assert (ended.status, ended.err) == (0, "")
        assert ended.out.lower().startswith(start.lower())

    def test_into_a_file(self, folder: Path) -> None:
        ended = narrowcast(folder, "report", "r.json", "--format", "csv", "--output", "r.csv")
        assert (ended.status, ended.out, ended.err) == (0, "", "")
        assert (folder / "r.csv").read_text().startswith("value,")

    @pytest.mark.parametrize(
        ("arguments", "status", "message"),
        [(("r.json", "--format", "pdf"), 2, "there is no report format 'pdf'; choose one of csv, html, json,"),
         (("none.json", "--format", "csv"), 2, "none.json cannot be read: No such file or directory"),
         (("batch.npz", "--format", "csv"), 2, "batch.npz is no JSON: "),
         (("r.json", "--format", "csv", "--output", "none/r.csv"), 3,
          "'none/r.csv' cannot be written: No such file or directory; check the folder")],
    )  # fmt: skip
    def test_refusals(self, folder: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
        before = names(folder)
        ended = narrowcast(folder, "report", *arguments)
        assert (ended.status, ended.out) == (status, "")
        assert ended.err.startswith(f"narrowcast: {message}")
        assert names(folder) == before


def test_formats(tmp_path: Path) -> None:
    found = {f["name"]: f for f in narrowcast(tmp_path, "formats", "--json").json}
    assert list(found) == ["fp32", "tf32", "fp16", "bf16"]
    assert (found["fp16"]["max_finite"], found["fp16"]["overflow_threshold"]) == (65504.0, 65520.0)
    shown = narrowcast(tmp_path, "formats").out
    assert "65504" in shown


def test_the_version(tmp_path: Path) -> None:
    ended = narrowcast(tmp_path, "--version")
    assert (ended.status, ended.out) == (0, f"narrowcast {converter.__version__}\n")


@pytest.mark.parametrize("command", ["serve", "serve-api", "serve-worker", "serve-sweeper", "submit", "jobs"])
def test_without_the_packages_of_the_service(command: str) -> None:
    """Whether a command's module needs the missing package or only its run does."""
    code = (
        "import sys\n"
        "for name in ('pydantic_settings', 'httpx2'): sys.modules[name] = None\n"
        f"sys.argv = ['narrowcast', {command!r}, *(['m.onnx'] if {command!r} == 'submit' else [])]\n"
        "from api.cli import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    assert ended.stderr.startswith(f"narrowcast: `narrowcast {command}` needs the package ")
    assert "from a clone `pip install -c constraints.txt -e '.[service]'`" in ended.stderr


def test_help_lists_every_command(tmp_path: Path) -> None:
    ended = narrowcast(tmp_path, "--help")
    assert ended.status == 0
    for name in ("convert", "validate", "inspect", "report", "formats", "serve", "submit", "wait", "download"):
        assert f"\n  {name} " in ended.out
