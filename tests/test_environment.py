"""What decides the last bits of a run, without a clock or a path."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

import converter
from converter import work
from converter.environment import describe
from converter.runtime.session import Threads
from converter.source.save import OutputFailure
from converter.types import ConversionRequest, EmulationProfile


def test_versions_threads_and_profile() -> None:
    found = describe(Threads(3), ConversionRequest(profile=EmulationProfile("mine")))
    assert found.narrowcast == converter.__version__
    assert (found.threads, found.prepacking, found.tf32, found.profile) == (3, False, False, "mine")
    for name in ("python", "onnx", "onnx_ir", "onnxruntime", "numpy", "ml_dtypes"):
        assert re.match(r"\d+\.\d+", getattr(found, name)), name


def test_twice_the_same_and_no_path() -> None:
    first, second = (describe(Threads(), ConversionRequest()) for _ in range(2))
    assert first == second
    assert not [v for v in asdict(first).values() if isinstance(v, str) and "/" in v]


def test_at_least_one_core() -> None:
    assert work.available_cores() >= 1


class TestFiles:
    def test_written_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        path.write_bytes(b"old")
        work.write_file(str(path), b"new")
        assert path.read_bytes() == b"new"
        assert [p.name for p in tmp_path.iterdir()] == ["r.json"]

    def test_or_not_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "r.json"
        path.write_bytes(b"old")

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("converter.source.draft.os.write", full)
        with pytest.raises(OutputFailure, match=r"'.*r.json' cannot be written: No space left on device"):
            work.write_file(str(path), b"new")
        assert path.read_bytes() == b"old"
        assert [p.name for p in tmp_path.iterdir()] == ["r.json"]

    def test_a_link_is_written_where_it_leads(self, tmp_path: Path) -> None:
        (tmp_path / "real.json").touch()
        (tmp_path / "link.json").symlink_to("real.json")
        work.write_file(str(tmp_path / "link.json"), b"new")
        assert (tmp_path / "real.json").read_bytes() == b"new"
        assert (tmp_path / "link.json").is_symlink()
