"""The real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as the one JSON object it has to be."""
        return json.loads(self.out)


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def start(
    folder: Path, *arguments: object, stderr: int = subprocess.PIPE, extra: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command in a folder; its standard streams are pipes, so there is no terminal."""
    command = [sys.executable, "-m", "api.cli", *map(str, arguments)]
    env = environment() | dict(extra or {})
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr, text=True)


def narrowcast(folder: Path, *arguments: object) -> Ended:
    """Run a command to its end."""
    with start(folder, *arguments) as running:
        out, err = running.communicate(timeout=120)
    return Ended(running.returncode, out, err)


def write(folder: Path, proto: onnx.ModelProto, **arrays: Any) -> None:
    """``model.onnx`` and ``batch.npz``."""
    onnx.save(proto, folder / "model.onnx")
    np.savez(folder / "batch.npz", **arrays)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())
