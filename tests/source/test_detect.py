"""What kind of file a model is, by its content."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from converter.source.detect import SourceKind, UnsupportedModel, kind_of
from tests.models.build import model


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(name, b"x")
    return path


@pytest.mark.parametrize(
    ("names", "kind"),
    [(("m/code/a.py",
     "m/constants.pkl"), SourceKind.TORCHSCRIPT), (("m/models/model.json",), SourceKind.EXPORTED_PROGRAM),
     (("serialized_exported_program.json",), SourceKind.EXPORTED_PROGRAM)],
)  # fmt: skip
def test_programs(tmp_path: Path, names: tuple[str, ...], kind: SourceKind) -> None:
    assert kind_of(archive(tmp_path / "m.pt2", *names)) is kind


def test_an_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "m.bin"
    path.write_bytes(model("g (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString())
    assert kind_of(path) is SourceKind.ONNX


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x.npy",),
         "'m.zip' is a zip archive but no PyTorch program: it holds NumPy arrays; a batch is given with --samples"),
        (("a.txt",), "'m.zip' is a zip archive but no PyTorch program: it holds 'a.txt'; give an .onnx,"
         " .pt or .pt2 file"),
        (("m/data/aotinductor/model/a.so",), "'m.zip' is a package compiled for one machine (AOTInductor); give the "
         "ExportedProgram it was made from (torch.export.save)"),
        (("m/data.pkl",), "'m.zip' is a pickle (torch.save): a state dict or a module,"
         " and loading it would run code from"),
    ],
)  # fmt: skip
def test_other_archives(tmp_path: Path, names: tuple[str, ...], message: str) -> None:
    with pytest.raises(UnsupportedModel) as refused:
        kind_of(archive(tmp_path / "m.zip", *names))
    assert str(refused.value).startswith(message)


def test_an_archive_that_is_cut(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.zip", "a.txt")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UnsupportedModel, match=r"'m.zip' begins like a zip archive and cannot be read as one \("):
        kind_of(path)
