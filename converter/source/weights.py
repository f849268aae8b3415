"""Reading constants piece by piece, so that none has to be in memory whole.

A tensor in external data is read from its file straight into the caller's buffer; nothing is mapped, so what was
read does not count as memory of this process.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from converter.errors import EnvironmentFailure

Bytes = NDArray[np.uint8]
ReadBytes = Callable[[int, Bytes], None]
"""Fills a buffer from a byte position of one tensor."""

PIECE_BYTES: Final = 2**19
"""Bytes read at once: a piece of FP32 and its narrow copy stay in a core's second-level cache of 1 MiB."""


class WeightsUnreadable(EnvironmentFailure):
    """A data file became shorter, or failed, while it was being read."""

    code = "WEIGHTS_UNREADABLE"


class WeightFiles(AbstractContextManager["WeightFiles"]):
    """Open data files; readers may be used from several threads."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()

    def __exit__(self, *failure: object) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()

    def reader(self, tensor: ir.TensorProtocol) -> ReadBytes:
        """A function that reads bytes of a tensor as ONNX stores them."""
        place = external_place(tensor)
        if place is None:
            return _memory_reader(tensor)
        path, offset, _ = place
        return _FileReader(self._open(path), offset, tensor.name or "", path)

    def _open(self, path: str) -> int:
        with self._lock:
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            return self._descriptors[path]


def external_place(tensor: ir.TensorProtocol) -> tuple[str, int, int] | None:
    """File, offset and length of a tensor in external data; None for one in memory."""
    if not isinstance(tensor, ir.ExternalTensor):
        return None
    return os.fspath(tensor.path), int(tensor.offset or 0), int(tensor.nbytes)


class _FileReader:
    """Positional reads from one tensor's range of a file."""

    __slots__ = ("_descriptor", "_name", "_offset", "_path")

    def __init__(self, descriptor: int, offset: int, name: str, path: str) -> None:
        self._descriptor = descriptor
        self._offset = offset
        self._name = name
        self._path = path

    def __call__(self, start: int, buffer: Bytes) -> None:
        done, position = 0, self._offset + start
        if self._in_hole(position, buffer.nbytes):
            buffer[:] = 0
            return
        while done < buffer.nbytes:
            got = os.preadv(self._descriptor, [buffer[done:].data], position + done)
            if not got:
                raise WeightsUnreadable(
                    f"data file '{Path(self._path).name}' ends inside tensor '{self._name}' "
                    f"(at byte {position + done}); it was changed while it was being read"
                )
            done += got

    def _in_hole(self, position: int, length: int) -> bool:
        """Whether a range lies in a hole of a sparse file: zeros that need not be read (nor fill the page cache)."""
        if not hasattr(os, "SEEK_DATA"):
            return False
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA) >= position + length
        except OSError as error:  # nothing but a hole up to the end of the file, or beyond it
            inside = position + length <= os.fstat(self._descriptor).st_size
            return error.errno == errno.ENXIO and inside


def _memory_reader(tensor: ir.TensorProtocol) -> ReadBytes:
    flat = flat_bytes(tensor)

    def read(start: int, buffer: Bytes) -> None:
        buffer[:] = flat[start : start + buffer.nbytes]

    return read


def flat_bytes(tensor: ir.TensorProtocol) -> Bytes:
    """A tensor's bytes as ONNX stores them: a view where NumPy has the element type, else a copy."""
    array: NDArray[Any] = np.asarray(tensor.numpy())
    if array.nbytes != tensor.nbytes or array.dtype.hasobject:
        return np.frombuffer(tensor.tobytes(), np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
