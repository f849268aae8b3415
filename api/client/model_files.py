"""Which files make up a model: an ONNX file names its external data, and we read just those names.

The protobuf is walked without being parsed: field numbers and lengths, over a memory map, into nothing but the
messages that can hold a tensor.  So a 2 GB file costs no memory and no ONNX installation.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from converter.errors import ModelError

_LENGTH_DELIMITED: Final = 2
_SKIP: Final = {1: 8, 5: 4}
_NESTED: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 25: "function", 20: "training"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
"""Message -> field number -> the message in that field (onnx.proto)."""
MAX_DEPTH: Final = 200


def files_of_model(path: Path) -> dict[str, Path]:
    """Relative name -> file, the model itself first.

    Raises:
        ModelError: the model, or a file it names, is not there, or a name leaves the model's folder.
    """
    if not path.is_file():
        raise ModelError(f"there is no model at {path}")
    found = {path.name: path}
    if path.suffix.lower() != ".onnx":
        return found
    for name in sorted(external_names(path)):
        parts = Path(name).parts
        if not parts or ".." in parts or Path(name).is_absolute():
            raise ModelError(f"{path} names its data {name!r}, which is not below the model's folder")
        target = path.parent / name
        if not target.is_file():
            raise ModelError(f"{path} keeps weights in {name!r}, which is not beside it")
        found["/".join(parts)] = target
    return found


def external_names(path: Path) -> set[str]:
    """The ``location`` of every tensor that is stored outside the file."""
    if path.stat().st_size == 0:
        return set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return set(_walk(content, 0, len(content), "model", 0))
        except (IndexError, UnicodeDecodeError, RecursionError):
            return set()  # no protobuf: the service will say what is wrong with it


def _walk(content: mmap.mmap, start: int, stop: int, message: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise RecursionError
    if message == "entry":
        yield from _location(content, start, stop)
        return
    nested = _NESTED[message]
    for number, begin, end in _fields(content, start, stop):
        inner = nested.get(number)
        if inner is not None and end > begin:
            yield from _walk(content, begin, end, inner, depth + 1)


def _location(content: mmap.mmap, start: int, stop: int) -> Iterator[str]:
    fields = {number: content[begin:end] for number, begin, end in _fields(content, start, stop)}
    if fields.get(1) == b"location":
        yield fields.get(2, b"").decode()


def _fields(content: mmap.mmap, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(number, start, end) of every length-delimited field; others are stepped over."""
    while position < stop:
        tag, position = _varint(content, position)
        kind = tag & 7
        if kind == _LENGTH_DELIMITED:
            size, position = _varint(content, position)
            if position + size > stop:
                raise IndexError
            yield tag >> 3, position, position + size
            position += size
        elif kind == 0:
            _, position = _varint(content, position)
        elif kind in _SKIP:
            position += _SKIP[kind]
        else:
            raise IndexError


def _varint(content: mmap.mmap, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError


def batch_files(paths: list[Path]) -> list[Path]:
    """The batches given: files, and every batch file of a folder, in order.

    Raises:
        ModelError: one is not there, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.iterdir() if one.suffix in (".npz", ".npy", ".safetensors"))
            if not inside:
                raise ModelError(f"the folder {path} holds no .npz, .npy or .safetensors")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise ModelError(f"there is no batch at {path}")
    return found
