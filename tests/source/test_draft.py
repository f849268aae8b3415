"""Files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from converter.source import draft as draft_module
from converter.source.draft import Draft


@pytest.fixture(params=["unnamed", "named"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without a system that knows files without a name."""
    if request.param == "named":
        monkeypatch.delattr(draft_module.os, "O_TMPFILE", raising=False)
    return str(request.param)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.usefixtures("way")
class TestBothWays:
    @pytest.mark.parametrize("durable", [False, True])
    def test_a_published_file_has_its_content_and_nothing_else_is_left(self, tmp_path: Path, durable: bool) -> None:
        target = tmp_path / "out"
        target.write_bytes(b"old")
        with Draft(tmp_path) as draft:
            draft.write(b"hel")
            draft.write(b"lo")
            assert target.read_bytes() == b"old"
            draft.publish(target, durable)
        assert target.read_bytes() == b"hello"
        assert names(tmp_path) == ["out"]

    def test_what_is_not_published_goes(self, tmp_path: Path) -> None:
        with Draft(tmp_path) as draft:
            draft.write(b"hello")
        assert names(tmp_path) == []

    def test_a_failure_leaves_the_old_file(self, tmp_path: Path) -> None:
        (tmp_path / "out").write_bytes(b"old")
        with contextlib.suppress(RuntimeError), Draft(tmp_path) as draft:
            draft.write(b"new")
            raise RuntimeError
        assert (tmp_path / "out").read_bytes() == b"old"
        assert names(tmp_path) == ["out"]

    def test_a_target_that_cannot_be_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        with Draft(tmp_path) as draft, pytest.raises(OSError, match=r"directory"):
            draft.publish(tmp_path / "out", durable=False)
        assert names(tmp_path) == ["out"]

    def test_a_pipe_is_written_to_and_stays(self, tmp_path: Path) -> None:
        """Replacing it would do the same to /dev/null, for a user who may."""
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        with Draft(tmp_path) as draft:
            draft.write(b"hello")
            draft.publish(pipe, durable=True)
        assert os.read(reader, 100) == b"hello"
        os.close(reader)
        assert pipe.is_fifo()
        assert names(tmp_path) == ["pipe"]

    def test_it_may_be_read_by_whom_the_mask_allows(self, tmp_path: Path) -> None:
        before = os.umask(0o027)
        try:
            with Draft(tmp_path) as draft:
                draft.publish(tmp_path / "out", durable=False)
        finally:
            os.umask(before)
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o640


def test_without_a_name_nothing_stands_in_the_folder(tmp_path: Path, way: str) -> None:
    with Draft(tmp_path) as draft:
        draft.write(b"hello")
        assert bool(names(tmp_path)) == (way == "named")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(draft_module.os, "open", refuse)
    with pytest.raises(PermissionError):
        Draft(tmp_path)
