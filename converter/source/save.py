"""Writing a model and its external data as one pair that is never half there.

The data file gets a name made from its content and appears first; the model appears last, so a reader of the old
name sees the old pair until the new one is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from converter.errors import EnvironmentFailure
from converter.source.draft import Draft
from converter.source.onnx_file import restore
from converter.types import Finding

INLINE_LIMIT: Final = 1_500_000_000
"""Above this many bytes of weights the model gets external data: protobuf files end at 2 GiB."""

EXTERNAL_FROM: Final = 4096
"""Smaller tensors stay in the model file: each external one starts on a page of its own."""


@dataclass(frozen=True, slots=True)
class WrittenWeights:
    """Tensors in a data file: offsets in their order, the file's size, and a digest of its content."""

    offsets: tuple[int, ...]
    size: int
    digest: str


WriteWeights = Callable[[Sequence[ir.TensorProtocol], int], WrittenWeights]
"""Writes tensors to an open file (``rewrite.stream``)."""


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


def check_target(target: Path) -> None:
    """Check that a file can stand there.

    Raises:
        OutputFailure: it is a folder, or its folder does not exist.
    """
    if target.is_dir():
        raise OutputFailure(f"output '{target}' is a folder; give a file name")
    if not target.resolve().parent.is_dir():
        raise OutputFailure(f"the folder of output '{target}' does not exist; make it first")


def save(
    model: ir.Model,
    output: str | Path,
    external: bool,
    training: list[onnx.TrainingInfoProto],
    changed: set[str],
    write_weights: WriteWeights,
) -> SavedModel:
    """Write a model; ``external`` keeps weights in a data file beside it.

    Raises:
        OutputFailure: the files cannot be written; nothing is left behind.
    """
    target = Path(output)
    check_target(target)
    values = [v for v in _initializers(model) if v.const_value is not None]
    size = sum(int(v.const_value.nbytes) for v in values if v.const_value is not None)
    try:
        if external or size > INLINE_LIMIT:
            return _write_pair(model, target, values, training, changed, write_weights)
        return _write_model(model, target, training, changed)
    except OSError as error:
        raise OutputFailure(f"output '{target}' cannot be written: {error.strerror or error}") from error


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.values()


def _write_pair(
    model: ir.Model,
    target: Path,
    values: Sequence[ir.Value],
    training: list[onnx.TrainingInfoProto],
    changed: set[str],
    write_weights: WriteWeights,
) -> SavedModel:
    large = [v for v in values if _goes_out(v.const_value)]
    if not large:
        return _write_model(model, target, training, changed)
    place = target.resolve()
    with Draft(place.parent) as draft:
        tensors = [v.const_value for v in large if v.const_value is not None]
        written = write_weights(tensors, draft.descriptor)
        data = place.with_name(f"{target.stem}-{written.digest[:16]}.data")
        known = data.exists()
        draft.publish(data, durable=place.exists())
    try:
        with _external(large, data.name, written.offsets):
            saved = _write_model(model, target, training, changed)
    except BaseException:
        if not known:
            data.unlink(missing_ok=True)
        raise
    beside = data if target.is_symlink() else target.with_name(data.name)
    files = (*saved.files, str(beside))
    return SavedModel(files, saved.bytes + written.size, saved.sha256, saved.findings)


def _goes_out(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.nbytes >= EXTERNAL_FROM and tensor.dtype != ir.DataType.STRING


@contextmanager
def _external(values: Sequence[ir.Value], location: str, offsets: Sequence[int]) -> Iterator[None]:
    """Let values refer to a data file while the model is written."""
    before = [v.const_value for v in values]
    for value, tensor, offset in zip(values, before, offsets, strict=True):
        assert tensor is not None
        value.const_value = ir.ExternalTensor(
            location, offset, int(tensor.nbytes), tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()), name=value.name or "", doc_string=tensor.doc_string,
        )  # fmt: skip
    try:
        yield
    finally:
        for value, tensor in zip(values, before, strict=True):
            value.const_value = tensor


def _write_model(
    model: ir.Model, target: Path, training: list[onnx.TrainingInfoProto], changed: set[str]
) -> SavedModel:
    proto = ir.to_proto(model)
    findings = restore(proto, training, changed)
    content = proto.SerializeToString(deterministic=True)
    place = target.resolve()
    with Draft(place.parent) as draft:
        draft.write(content)
        draft.publish(place, durable=place.exists())
    return SavedModel((str(target),), len(content), hashlib.sha256(content).hexdigest(), tuple(findings))
