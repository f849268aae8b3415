"""Reading constants piece by piece: files, memory, holes, and a file that changes under the reader."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from converter.source.weights import PIECE_BYTES, WeightFiles, WeightsUnreadable, external_place, flat_bytes


def external(folder, array, offset=0, name="w") -> ir.ExternalTensor:
    path = folder / "w.data"
    with path.open("ab") as stream:
        stream.truncate(offset)
        stream.seek(offset)
        stream.write(array.tobytes())
    kind = ir.DataType.from_numpy(array.dtype)
    return ir.ExternalTensor(
        "w.data", offset, array.nbytes, kind, shape=ir.Shape(array.shape), name=name, base_dir=str(folder)
    )


def read_all(tensor, piece=1000) -> bytes:
    with WeightFiles() as files:
        read = files.reader(tensor)
        found = bytearray()
        for start in range(0, int(tensor.nbytes), piece):
            buffer = np.empty(min(piece, int(tensor.nbytes) - start), np.uint8)
            read(start, buffer)
            found += buffer.tobytes()
        return bytes(found)


def test_external_tensor_is_read_from_its_place(tmp_path):
    array = np.arange(3000, dtype=np.float32)
    tensor = external(tmp_path, array, offset=4096)
    assert external_place(tensor) == (str(tmp_path / "w.data"), 4096, 12000)
    assert read_all(tensor) == array.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16, ml_dtypes.int4])
def test_tensor_in_memory_is_read_as_onnx_stores_it(dtype):
    tensor = ir.tensor(np.array([1, 0, 1, 1, 0], dtype), name="w")
    assert external_place(tensor) is None
    assert read_all(tensor, 2) == tensor.tobytes() == flat_bytes(tensor).tobytes()


def test_holes_read_as_zeros_without_being_read(tmp_path):
    path = tmp_path / "w.data"
    size = 64 * PIECE_BYTES
    with path.open("wb") as stream:
        stream.truncate(size)
        stream.seek(size // 2)
        stream.write(b"\1" * 4)
    tensor = ir.ExternalTensor(
        "w.data", 0, size, ir.DataType.FLOAT, shape=ir.Shape([size // 4]), name="w", base_dir=str(tmp_path)
    )
    found = read_all(tensor, PIECE_BYTES)
    assert found == path.read_bytes()
    assert path.stat().st_blocks * 512 < size


def test_file_that_ends_too_early_is_named(tmp_path):
    tensor = external(tmp_path, np.arange(3000, dtype=np.float32))
    os.truncate(tmp_path / "w.data", 5000)
    with pytest.raises(
        WeightsUnreadable,
        match=r"^data file 'w\.data' ends inside tensor 'w' \(at byte 5000\); it was changed while it was being read$",
    ):
        read_all(tensor, 12000)
