"""The command line with programs: files, exit statuses, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.torch.models import floats

X = floats(3, 4)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()
    torch.export.save(torch.export.export(module, (torch.from_numpy(X),)), folder / "net.pt2")
    torch.save(module.state_dict(), folder / "weights.pt")
    np.savez(folder / "batch.npz", X)
    np.savez(folder / "wrong.npz", other=X)
    return folder


def narrowcast(work: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "api.cli", *words, "--threads", "1"]
    root = Path(__file__).resolve().parent.parent.parent
    return subprocess.run(
        command, cwd=work, capture_output=True, text=True, timeout=300, env={"PYTHONPATH": str(root)}, check=False
    )


def test_a_program_in_and_out(work: Path) -> None:
    done = narrowcast(work, "convert", "net.pt2", "--samples", "batch.npz", "--output", "out.pt2", "--report", "r.json")
    assert done.returncode == 0, done.stderr
    assert "model   out.onnx" in done.stdout
    assert "program out.pt2" in done.stdout
    assert (work / "out.onnx").exists()
    torch.export.load(work / "out.pt2")
    program = json.loads((work / "r.json").read_text())["program"]
    assert program["kind"] == "ExportedProgram"
    assert program["handed_back"]["status"] == "written"


def test_a_program_that_is_refused_ends_in_2_and_the_onnx_is_there(work: Path) -> None:
    done = narrowcast(work, "convert", "net.pt2", "--samples", "batch.npz", "--no-validate", "--output", "no.pt2")
    assert done.returncode == 2
    said = "narrowcast: no no.pt2: it cannot be checked: the converted ONNX model was not run; no.onnx is there"
    assert said in done.stderr
    assert (work / "no.onnx").exists()
    assert "program" not in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("net.pt2", "--samples", "wrong.npz"), "batch 'wrong.npz' has key 'other', which is no argument"),
        (("weights.pt", "--samples", "batch.npz"), "'weights.pt' is a pickle (torch.save)"),
        (("net.pt2", "--samples", "batch.npz", "--dynamic", "input:1"), "exported with size 4 fixed there"),
    ],
)
def test_refusals(work: Path, words: tuple[str, ...], text: str) -> None:
    done = narrowcast(work, "convert", *words)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stdout == ""
