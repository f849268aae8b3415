"""Writing a model and its external data as one pair that is never half there.

The data file gets a name made from its content and is written first; the model is renamed into place last, so
a reader of the old name sees the old pair until the new one is complete.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from converter.errors import EnvironmentFailure
from converter.source.onnx_file import restore
from converter.types import Finding

INLINE_LIMIT = 1_500_000_000
"""Above this many bytes of weights the model gets external data: protobuf files end at 2 GiB."""

_KEPT_INLINE = 1024
"""Tensors smaller than this stay in the model file."""


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The files of a model: the main one first, external data after; sizes in bytes."""

    files: tuple[str, ...]
    bytes: int
    sha256: str
    findings: tuple[Finding, ...] = ()


class OutputFailure(EnvironmentFailure):
    """The output folder is missing, read-only or full."""

    code = "OUTPUT_FAILED"


def save(
    model: ir.Model,
    output: str | Path,
    external: bool,
    training: list[onnx.TrainingInfoProto],
    changed: set[str],
) -> SavedModel:
    """Write a model; ``external`` keeps weights in a data file beside it.

    Raises:
        OutputFailure: the files cannot be written; nothing is left behind.
    """
    target = Path(output)
    if target.is_dir():
        raise OutputFailure(f"output '{target}' is a folder; give a file name ending in .onnx")
    folder = target.resolve().parent
    if not folder.is_dir():
        raise OutputFailure(f"the folder of output '{target}' does not exist; make it first")
    size = sum(int(v.const_value.nbytes) for v in model.graph.initializers.values() if v.const_value is not None)
    try:
        with tempfile.TemporaryDirectory(prefix=".narrowcast-", dir=folder) as work:
            return _write(model, target, Path(work), external or size > INLINE_LIMIT, training, changed)
    except OSError as error:
        raise OutputFailure(f"output '{target}' cannot be written: {error.strerror or error}") from error


def _write(
    model: ir.Model,
    target: Path,
    work: Path,
    external: bool,
    training: list[onnx.TrainingInfoProto],
    changed: set[str],
) -> SavedModel:
    data: Path | None = None
    if external:
        data_bytes = work / "weights.data"
        ir.save(model, work / "draft.onnx", external_data=data_bytes.name, size_threshold_bytes=_KEPT_INLINE,
                alignment=4096)  # fmt: skip
        proto = onnx.load(work / "draft.onnx", load_external_data=False)
        if data_bytes.exists():
            data = target.with_name(f"{target.stem}-{_digest(data_bytes)[:16]}.data")
            _relocate(proto, data.name)
            data_bytes.replace(target.resolve().parent / data.name)
    else:
        proto = ir.to_proto(model)
    findings = restore(proto, training, changed)
    content = proto.SerializeToString(deterministic=True)
    draft = work / target.name
    with draft.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(target.resolve())
    files = (str(target),) if data is None else (str(target), str(data))
    total = len(content) + (data.stat().st_size if data is not None else 0)
    return SavedModel(files, total, hashlib.sha256(content).hexdigest(), tuple(findings))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(2**22):
            digest.update(piece)
    return digest.hexdigest()


def _relocate(proto: onnx.ModelProto, location: str) -> None:
    graphs = [proto.graph]
    while graphs:
        graph = graphs.pop()
        for tensor in graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        for node in graph.node:
            graphs += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
