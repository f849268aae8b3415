"""What a path holds is told by its content; pickles, bare weights and compiled packages are refused with a way out."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from converter.source.detect import SourceKind, UnsupportedModel, kind_of


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as stream:
        for name in names:
            stream.writestr(name, b"x")
    return path


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("net/data.pkl", "net/code/__torch__.py", "net/constants.pkl", "net/version"), SourceKind.TORCHSCRIPT),
        (("net/models/model.json", "net/archive_format", "net/data/weights/weight_0"), SourceKind.EXPORTED_PROGRAM),
        (("serialized_exported_program.json", "version"), SourceKind.EXPORTED_PROGRAM),
    ],
)
def test_archives_by_content_whatever_they_are_called(tmp_path: Path, names: tuple[str, ...], kind: SourceKind) -> None:
    assert kind_of(archive(tmp_path / "model.onnx", *names)) is kind


def test_other_files_are_left_to_the_onnx_reader(tmp_path: Path) -> None:
    plain = tmp_path / "model.pt"
    plain.write_bytes(b"\x08\x0a\x12")
    assert kind_of(plain) is SourceKind.ONNX
    assert kind_of(tmp_path / "missing.pt2") is SourceKind.ONNX
    assert kind_of(tmp_path) is SourceKind.ONNX


@pytest.mark.parametrize("what", ["archive", "pickle", "tar"])
def test_pickles_are_refused_with_the_way_out(tmp_path: Path, what: str) -> None:
    path = tmp_path / "net.pth"
    if what == "archive":
        archive(path, "net/data.pkl", "net/data/0", "net/version")
    elif what == "pickle":
        path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    else:
        with tarfile.open(path, "w") as stream:
            stream.addfile(tarfile.TarInfo("pickle"), io.BytesIO())
    with pytest.raises(UnsupportedModel, match=r"'net.pth' is a pickle \(torch.save\).*would run code") as refused:
        kind_of(path)
    assert "torch.export.save(" in str(refused.value)
    assert "torch.jit.save(" in str(refused.value)


def test_bare_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, path)
    with pytest.raises(UnsupportedModel, match=r"holds weights only \(safetensors\); give the folder"):
        kind_of(path)


def test_compiled_packages_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "net.pt2", "net/data/aotinductor/model/net.so", "net/models/model.json")
    with pytest.raises(UnsupportedModel, match=r"compiled for one machine \(AOTInductor\)"):
        kind_of(path)


def test_a_batch_given_as_the_model(tmp_path: Path) -> None:
    path = tmp_path / "batch.npz"
    np.savez(path, x=np.zeros(2))
    with pytest.raises(UnsupportedModel, match="no PyTorch program: it holds NumPy arrays; a batch is given with"):
        kind_of(path)


def test_other_archives_name_what_is_inside(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"it holds 'a.txt', 'b/c.txt'; give an .onnx, .pt or .pt2 file"):
        kind_of(archive(tmp_path / "x.zip", "a.txt", "b/c.txt"))
    with pytest.raises(UnsupportedModel, match="it holds nothing"):
        kind_of(damaged_central_directory(tmp_path / "empty.zip"))


def damaged_central_directory(path: Path) -> Path:
    """Begins like an archive with an entry, and lists none."""
    archive(path, "a")
    content = path.read_bytes()
    end = content.index(b"PK\x05\x06")
    path.write_bytes(content[: content.index(b"PK\x01\x02")] + content[end : end + 8] + bytes(14))
    return path


def test_a_truncated_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "net.pt2", "net/models/model.json")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(UnsupportedModel, match="begins like a zip archive and cannot be read as one"):
        kind_of(path)


def folder(path: Path, config: str, weights: bool = True) -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    if weights:
        (path / "model.safetensors").write_bytes(b"")
    return path


def test_folders_as_hugging_face_writes_them(tmp_path: Path) -> None:
    assert kind_of(folder(tmp_path / "bert", json.dumps({"architectures": ["BertModel"]}))) is SourceKind.FOLDER


@pytest.mark.parametrize(
    ("config", "weights", "text"),
    [
        ("{}", False, r"folder 'net' has a config.json but no \*.safetensors weights"),
        ('{"auto_map": {"AutoModel": "code.Net"}}', True, r"names code of its own \(auto_map\), which is never run"),
        ("{", True, "'config.json' of folder 'net' is no JSON:"),
        ("[]", True, "'config.json' of folder 'net' is no JSON object"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, config: str, weights: bool, text: str) -> None:
    with pytest.raises(UnsupportedModel, match=text):
        kind_of(folder(tmp_path / "net", config, weights))
