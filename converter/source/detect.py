"""What kind of model a path holds, told by its content; nothing is loaded and nothing is run."""

from __future__ import annotations

import enum
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from converter.errors import ModelError


class SourceKind(enum.Enum):
    """How a model is brought in; the value is how reports name it."""

    ONNX = "ONNX"
    TORCHSCRIPT = "TorchScript"
    EXPORTED_PROGRAM = "ExportedProgram"
    FOLDER = "Hugging Face folder"


class UnsupportedModel(ModelError):
    """The file is something that is known and refused on purpose."""

    code = "UNSUPPORTED_FORMAT"


MAX_ENTRIES = 200_000
"""Entries of an archive that are looked at."""

_ZIP, _PICKLE, _TAR = b"PK\x03\x04", b"\x80", b"ustar"
_TAR_AT = 257
_WAY_OUT = (
    "save the program instead: torch.export.save(torch.export.export(model.eval(), args), 'model.pt2'), or "
    "torch.jit.save(torch.jit.script(model.eval()), 'model.pt')"
)


def kind_of(path: Path) -> SourceKind:
    """The kind of the model at a path; anything unknown is left to the ONNX reader.

    Raises:
        UnsupportedModel: it is a pickle, bare weights, a compiled package or a batch; the message has the way out.
    """
    if path.is_dir():
        return _kind_of_folder(path)
    try:
        with path.open("rb") as stream:
            head = stream.read(512)
    except OSError:
        return SourceKind.ONNX  # its reader says what is wrong with the path
    if head.startswith(_ZIP):
        return _kind_of_archive(path)
    if head.startswith(_PICKLE) or head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        raise _pickled(path)
    if _is_safetensors(head, path):
        raise UnsupportedModel(
            f"'{path.name}' holds weights only (safetensors); give the folder that has them beside their config.json, "
            f"or {_WAY_OUT}"
        )
    return SourceKind.ONNX


def _kind_of_archive(path: Path) -> SourceKind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:MAX_ENTRIES]
    except (zipfile.BadZipFile, OSError) as error:
        raise UnsupportedModel(
            f"'{path.name}' begins like a zip archive and cannot be read as one ({error}); save or copy it again"
        ) from error
    inside = {name.partition("/")[2] for name in names}
    if any(name.endswith((".so", ".cubin")) or "/aotinductor/" in f"/{name}" for name in inside):
        raise UnsupportedModel(
            f"'{path.name}' is a package compiled for one machine (AOTInductor); give the ExportedProgram it was made "
            "from (torch.export.save)"
        )
    if any(name.startswith("models/") and name.endswith(".json") for name in inside):
        return SourceKind.EXPORTED_PROGRAM
    if "serialized_exported_program.json" in names:
        return SourceKind.EXPORTED_PROGRAM
    if "constants.pkl" in inside or any(name.startswith("code/") for name in inside):
        return SourceKind.TORCHSCRIPT
    if "data.pkl" in inside:
        raise _pickled(path)
    raise UnsupportedModel(f"'{path.name}' is a zip archive but no PyTorch program: {_contents(names)}")


def _contents(names: Sequence[str]) -> str:
    if names and all(name.endswith(".npy") for name in names):
        return "it holds NumPy arrays; a batch is given with --samples"
    return f"it holds {', '.join(repr(name[:80]) for name in names[:3]) or 'nothing'}; give an .onnx, .pt or .pt2 file"


def _pickled(path: Path) -> UnsupportedModel:
    return UnsupportedModel(
        f"'{path.name}' is a pickle (torch.save): a state dict or a module, and loading it would run code from the "
        f"file; {_WAY_OUT}"
    )


def _is_safetensors(head: bytes, path: Path) -> bool:
    """Eight bytes of header length, then the header as JSON."""
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and 2 <= length <= path.stat().st_size - 8


# ------------------------------------------------------------------------------------------------- folders


def _kind_of_folder(path: Path) -> SourceKind:
    """A folder with a ``config.json`` is read as Hugging Face writes it; other folders are left to the ONNX reader."""
    config = path / "config.json"
    if not config.is_file():
        return SourceKind.ONNX
    if not any(path.glob("*.safetensors")):
        raise UnsupportedModel(
            f"folder '{path.name}' has a config.json but no *.safetensors weights; write them with "
            "model.save_pretrained(FOLDER) (pickled weights are not read)"
        )
    content = read_config(config)
    if "auto_map" in content:
        raise UnsupportedModel(
            f"the config.json of folder '{path.name}' names code of its own (auto_map), which is never run; export the "
            "model where you trust it: torch.export.save(torch.export.export(model, args), 'model.pt2')"
        )
    return SourceKind.FOLDER


def read_config(config: Path) -> dict[str, object]:
    """A ``config.json`` as a dict."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"'{config.name}' of folder '{config.parent.name}' is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise UnsupportedModel(f"'{config.name}' of folder '{config.parent.name}' is no JSON object")
    return content
