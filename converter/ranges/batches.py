"""Sample batches: reading them one at a time and checking them against the model's inputs.

A batch is one set of input arrays.  It comes from an ``.npz`` (keys are input names), a ``.npy`` (a model with
one input), a ``.safetensors`` file, or a folder of such files; in Python also as a mapping of arrays.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from converter.errors import BatchError
from converter.graph import ModelIndex, element_name, element_type, type_string

Array = NDArray[Any]
Source = str | Path | Mapping[str, Any]
SUFFIXES = (".npz", ".npy", ".safetensors")


@dataclass(frozen=True, slots=True)
class Batch:
    """One set of inputs by name: arrays, or lists of arrays for sequence inputs."""

    name: str
    feeds: Mapping[str, Any]


class Batches:
    """All batches of a request, read again from their files on each iteration; one is in memory at a time."""

    def __init__(self, sources: Sequence[Source], index: ModelIndex) -> None:
        self._sources = expand_sources(sources)
        self._index = index
        if not self._sources:
            raise BatchError("no sample batch was given; pass --samples FILE.npz (keys are the input names)")

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Batch]:
        for number, source in enumerate(self._sources):
            name = Path(source).name if isinstance(source, str | Path) else f"batch {number}"
            yield Batch(name, check_batch(read_source(source, required_inputs(self._index)), self._index, name))


def expand_sources(sources: Sequence[Source]) -> list[Source]:
    """Folders become the batch files inside them, in the order of their names."""
    found: list[Source] = []
    for source in sources:
        if isinstance(source, str | Path) and Path(source).is_dir():
            inside = sorted(p for p in Path(source).iterdir() if p.suffix in SUFFIXES)
            if not inside:
                raise BatchError(f"folder '{source}' holds no {', '.join(SUFFIXES)} file; put the sample batches there")
            found += inside
        else:
            found.append(source)
    return found


def read_source(source: Source, names: Sequence[str]) -> dict[str, Array]:
    """The arrays of one batch by key; ``names`` are the inputs, of which a ``.npy`` needs to be the only one.

    Raises:
        BatchError: the file is missing, empty or unreadable.
    """
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    if not path.exists():
        raise BatchError(f"sample batch '{path}' does not exist; check the path")
    if path.stat().st_size == 0:
        raise BatchError(f"sample batch '{path}' is empty (0 bytes); write it with numpy.savez")
    readers = {".npz": _read_npz, ".npy": _read_npy, ".safetensors": _read_safetensors}
    reader = readers.get(path.suffix)
    if reader is None:
        raise BatchError(f"sample batch '{path}' has an unknown ending; use one of {', '.join(readers)}")
    try:
        return reader(path, names)
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise BatchError(f"sample batch '{path}' cannot be read: {error}; write it with numpy.savez") from error


def _read_npz(path: Path, names: Sequence[str]) -> dict[str, Array]:
    del names
    with path.open("rb") as stream:
        head = stream.read(6)
        stream.seek(0)
        if not head.startswith((b"PK", b"\x93NUMPY")):
            raise ValueError(f"it is no NumPy archive (it begins with {head!r})")
        archive = np.load(stream, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds a single array, not an archive of named arrays")
        return {key: _numbers(archive, key) for key in archive.files}


def _numbers(archive: Any, key: str) -> Array:
    try:
        return np.asarray(archive[key])
    except ValueError as error:
        if "Object arrays" in str(error):
            raise BatchError(
                f"array '{key}' of a sample batch holds Python objects, not numbers; give its elements one numeric type"
            ) from error
        raise


def _read_npy(path: Path, names: Sequence[str]) -> dict[str, Array]:
    if len(names) != 1:
        raise BatchError(
            f"'{path}' holds one unnamed array, but the model has {len(names)} inputs ({', '.join(names)}); "
            "use an .npz with their names"
        )
    with path.open("rb") as stream:
        array = np.load(stream, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it holds an archive of named arrays, not a single one; call it .npz")
    return {names[0]: array}


def _read_safetensors(path: Path, names: Sequence[str]) -> dict[str, Array]:
    del names
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(str(error)) from error


def flat_sample(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with nested tuples, lists and dicts spelled out as dotted keys."""
    return dict(_flat_items(sample.items()))


def _flat_items(items: Iterable[tuple[Any, Any]], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in items:
        if isinstance(value, Mapping):
            yield from _flat_items(value.items(), f"{prefix}{key}.")
        elif isinstance(value, list | tuple) and not _is_numbers(value):
            yield from _flat_items(enumerate(value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_numbers(value: Sequence[Any]) -> bool:
    """Whether a list is an array written out."""
    return bool(value) and all(isinstance(v, int | float) for v in value)


def required_inputs(index: ModelIndex) -> list[str]:
    """Names of the graph inputs that have no default value."""
    graph = index.model.graph
    return [v.name or "" for v in graph.inputs if v.name not in graph.initializers]


def check_batch(given: Mapping[str, Any], index: ModelIndex, name: str) -> dict[str, Any]:
    """The feeds in the model's order, each checked for presence, type, rank and fixed dimensions.

    Raises:
        BatchError: naming the input, what it got and what it takes.
    """
    graph = index.model.graph
    inputs = {v.name or "": v for v in graph.inputs}
    extra = [key for key in given if key not in inputs]
    if extra:
        raise BatchError(
            f"batch '{name}' has key '{extra[0]}', which is no input of the model; its inputs are {_list(inputs)}: "
            "rename or remove it, or is it the batch of another model?"
        )
    feeds: dict[str, Any] = {}
    for key, value in inputs.items():
        if key in given:
            feeds[key] = _check_value(given[key], value, name)
        elif (type_string(value.type) or "").startswith("optional("):
            feeds[key] = None
        elif key not in graph.initializers:
            raise BatchError(
                f"batch '{name}' lacks input '{key}' ({type_string(value.type)}); add it under that key. "
                f"The batch has {_list(given)}"
            )
    return feeds


def _list(names: Iterable[str]) -> str:
    found = [f"'{n}'" for n in names]
    return ", ".join(found[:12]) + (f" and {len(found) - 12} more" if len(found) > 12 else "") or "none"


def _check_value(given: Any, value: ir.Value, batch: str) -> Any:
    kind = type_string(value.type) or ""
    if kind.startswith("seq("):
        elements = [np.ascontiguousarray(element) for element in given]
        for element in elements:
            _check_dtype(element, kind, value, batch)
        return elements
    if kind.startswith("optional("):
        if given is None or (isinstance(given, np.ndarray) and given.dtype == object and given.size == 0):
            return None
        kind = kind[len("optional(") : -1]
        if kind.startswith("seq("):
            return [np.ascontiguousarray(element) for element in given]
    array = np.asarray(given)
    _check_dtype(array, kind, value, batch)
    _check_shape(array, value, batch)
    if array.dtype.kind == "U":
        array = array.astype(object)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)


def _check_dtype(array: Array, kind: str, value: ir.Value, batch: str) -> None:
    wanted = element_type(kind)
    if wanted is None:
        return
    if wanted == ir.DataType.STRING:
        fits = array.dtype.kind in "OUS"
    else:
        fits = array.dtype == wanted.numpy() or (
            wanted in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and array.dtype == np.float32
        )
    if not fits:
        raise BatchError(
            f"input '{value.name}' of batch '{batch}' has element type {array.dtype}, the model takes "
            f"{element_name(wanted)}; convert it (for example with .astype('{_numpy_name(wanted)}'))"
        )


def _numpy_name(wanted: ir.DataType) -> str:
    return "str" if wanted == ir.DataType.STRING else str(wanted.numpy())


def _check_shape(array: Array, value: ir.Value, batch: str) -> None:
    shape = value.shape
    if shape is None:
        return
    stated = "[" + ", ".join(str(d) for d in shape) + "]"
    if array.ndim != len(shape):
        raise BatchError(
            f"input '{value.name}' of batch '{batch}' has rank {array.ndim} (shape {list(array.shape)}), the model "
            f"takes rank {len(shape)} {stated}; reshape it"
        )
    for axis, (have, want) in enumerate(zip(array.shape, shape, strict=True)):
        if isinstance(want, int) and want >= 0 and want != have:
            raise BatchError(
                f"input '{value.name}' of batch '{batch}' has size {have} on axis {axis} (shape {list(array.shape)}), "
                f"the model takes {want} there {stated}; cut or pad it"
            )
