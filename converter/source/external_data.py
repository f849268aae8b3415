"""Checks of external data before anything maps it: the path, the file and the byte range of every tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from converter.errors import ModelError


class ExternalDataMissing(ModelError):
    """A data file beside the model is missing or too short."""

    code = "EXTERNAL_DATA_MISSING"


class ExternalDataForbidden(ModelError):
    """A tensor points outside the model's folder or at no plain file."""

    code = "EXTERNAL_DATA_FORBIDDEN"


def check_external_data(model: ir.Model, base_dir: str, model_name: str) -> int:
    """Check every external tensor of every scope; returns the size of the data files in bytes.

    Raises:
        ExternalDataMissing: a data file is missing or shorter than a tensor needs.
        ExternalDataForbidden: a location leaves the model's folder, or offsets make no sense.
    """
    sizes: dict[str, int] = {}
    for tensor in _external_tensors(model):
        location = str(tensor.location)
        if location not in sizes:
            sizes[location] = _file_size(location, base_dir, tensor.name or "", model_name)
        _check_range(tensor, sizes[location])
    return sum(sizes.values())


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                yield attribute.value


def _file_size(location: str, base_dir: str, tensor: str, model_name: str) -> int:
    parts = Path(location).parts
    if not location or "\0" in location or Path(location).is_absolute() or ".." in parts or "\\" in location:
        raise ExternalDataForbidden(
            f"tensor '{tensor}' of '{model_name}' points to external data '{location[:200]}'; "
            "only plain relative paths inside the model's folder are allowed"
        )
    if not base_dir:
        raise ExternalDataMissing(
            f"tensor '{tensor}' lies in external data '{location}', but the model came without a folder; "
            "give the path of the .onnx file"
        )
    path = Path(base_dir) / location
    if not path.resolve().is_relative_to(Path(base_dir).resolve()):
        raise ExternalDataForbidden(
            f"external data '{location}' of tensor '{tensor}' leads outside the model's folder through a link; "
            "copy the file there"
        )
    if not path.is_file():
        raise ExternalDataMissing(
            f"external data '{location}' of tensor '{tensor}' is missing beside '{model_name}'; "
            "copy the data file into the same folder"
        )
    return path.stat().st_size


def _check_range(tensor: ir.ExternalTensor, size: int) -> None:
    offset, needed = tensor.offset or 0, int(tensor.nbytes)
    length = tensor.length if tensor.length is not None else needed
    if offset < 0 or length != needed:
        raise ExternalDataForbidden(
            f"external tensor '{tensor.name}' states offset {offset} and length {length}, its shape needs "
            f"{needed} bytes; the file is damaged or was edited"
        )
    if offset > size or needed > size - offset:
        raise ExternalDataMissing(
            f"external tensor '{tensor.name}' needs bytes {offset}..{offset + needed} of '{tensor.location}', "
            f"which has {size}; copy the whole data file"
        )
