"""Files that appear under their name only when complete, with and without a system that has nameless files."""

from __future__ import annotations

import os

import pytest

from converter.source import draft
from converter.source.draft import Draft


@pytest.fixture(params=["nameless", "named"])
def kind(request, monkeypatch):
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    return request.param


@pytest.mark.parametrize("durable", [False, True])
def test_published_file_has_its_content_and_ordinary_rights(kind, tmp_path, durable):
    target = tmp_path / "a.onnx"
    target.write_bytes(b"old")
    with Draft(tmp_path) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
        file.publish(target, durable)
    assert target.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask


def test_draft_that_is_not_published_leaves_nothing(kind, tmp_path):
    with Draft(tmp_path) as file:
        file.write(b"half")
    assert list(tmp_path.iterdir()) == []


def test_failed_publication_leaves_nothing(kind, tmp_path):
    target = tmp_path / "a.onnx"
    target.mkdir()
    (target / "inside").touch()
    with pytest.raises(OSError), Draft(tmp_path) as file:  # noqa: PT011
        file.publish(target, durable=False)
    assert [p.name for p in tmp_path.iterdir()] == ["a.onnx"]


def test_nameless_files_are_used_where_there_are_some(tmp_path):
    with Draft(tmp_path) as file:
        file.write(b"half")
        hidden = not list(tmp_path.iterdir())
        assert hidden == (file._path is None)
    assert draft._NOT_SUPPORTED
