"""Reading program files: modes, devices, folders, and files that cannot be read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from converter.errors import EnvironmentFailure, ModelError
from converter.source.detect import SourceKind, kind_of
from converter.source.torch_program import PackageMissing, require_torch, require_transformers
from converter.source.torch_program.load import load_program
from tests.torch.models import bert


def saved_script(path: Path, module: nn.Module) -> Path:
    torch.jit.save(torch.jit.script(module), path)
    return path


def test_torchscript_is_put_into_eval_mode(tmp_path: Path) -> None:
    path = saved_script(tmp_path / "net.pt", nn.Sequential(nn.Linear(2, 2), nn.Dropout()).train())
    assert kind_of(path) is SourceKind.TORCHSCRIPT
    program = load_program(path, SourceKind.TORCHSCRIPT)
    assert program.mode == "eval mode: eval() was called, the program was saved in training mode (3 modules)"
    assert program.module is not None
    assert not program.module.training
    assert program.reload is not None
    assert program.reload().mode.startswith("eval mode")


def test_torchscript_in_eval_mode(tmp_path: Path) -> None:
    path = saved_script(tmp_path / "net.pt", nn.Linear(2, 2).eval())
    assert load_program(path, SourceKind.TORCHSCRIPT).mode == "eval mode, as given"


def test_an_exported_program_and_what_its_results_are_made_of(tmp_path: Path) -> None:
    module, sample = bert()
    path = tmp_path / "bert.pt2"
    args = tuple(torch.from_numpy(value) for value in sample.values())
    torch.export.save(torch.export.export(module, args), path)
    assert kind_of(path) is SourceKind.EXPORTED_PROGRAM
    program = load_program(path, SourceKind.EXPORTED_PROGRAM)
    assert program.exported is not None
    assert program.mode.startswith("as it was exported")


@pytest.mark.parametrize("kind", [SourceKind.EXPORTED_PROGRAM, SourceKind.TORCHSCRIPT])
def test_files_that_pytorch_cannot_read(tmp_path: Path, kind: SourceKind) -> None:
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/models/model.json", "{}")
        archive.writestr("net/archive_format", "pt2")
    with pytest.raises(ModelError, match=r"'net.pt2' cannot be loaded by PyTorch 2\.13\S*: .+; save it again"):
        load_program(path, kind)


def folder(path: Path, name: str) -> Path:
    module, _ = bert()
    module.save_pretrained(path)
    config = path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": [name]}))
    return path


def test_a_folder_is_read_by_transformers_own_class(tmp_path: Path) -> None:
    path = folder(tmp_path / "bert", "BertModel")
    program = load_program(path, kind_of(path))
    assert (program.kind, program.label, program.mode) == ("Hugging Face folder", "BertModel", "eval mode")
    assert program.reload is None
    assert next(program.module.parameters()).dtype is torch.float32  # type: ignore[union-attr]


def test_a_class_that_transformers_does_not_have(tmp_path: Path) -> None:
    path = folder(tmp_path / "bert", "MyOwnModel")
    with pytest.raises(ModelError, match=r"asks for the class 'MyOwnModel', which transformers \S+ does not have"):
        load_program(path, SourceKind.FOLDER)


def test_a_folder_with_damaged_weights(tmp_path: Path) -> None:
    path = folder(tmp_path / "bert", "BertModel")
    (path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    with pytest.raises(ModelError, match="'bert' cannot be loaded by PyTorch"):
        load_program(path, SourceKind.FOLDER)


def test_missing_packages_come_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.source.torch_program.find_spec", lambda name: None)
    with pytest.raises(PackageMissing, match=r"need the package torch; .*`pip install 'narrowcast\[torch\]'`"):
        require_torch()
    with pytest.raises(PackageMissing, match=r"transformers; .* `pip install 'narrowcast\[transformers\]'`"):
        require_transformers()
    assert issubclass(PackageMissing, EnvironmentFailure)
