"""Reading constants piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.source.weights import WeightFiles, WeightsUnreadable, external_place, flat_bytes
from tests.models.build import model

ARRAY = np.arange(100, dtype=np.float32)


@pytest.fixture
def external(tmp_path: Path) -> ir.ExternalTensor:
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }", weights={"v": ARRAY[:3], "w": ARRAY})
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    found = ir.load(tmp_path / "m.onnx").graph.initializers["w"].const_value
    assert isinstance(found, ir.ExternalTensor)
    return found


def read(tensor: ir.TensorProtocol, start: int, length: int) -> bytes:
    buffer = np.empty(length, np.uint8)
    with WeightFiles() as files:
        files.reader(tensor)(start, buffer)
    return buffer.tobytes()


def test_pieces_of_a_file(external: ir.ExternalTensor) -> None:
    assert read(external, 0, 400) == ARRAY.tobytes()
    assert read(external, 40, 8) == ARRAY[10:12].tobytes()


def test_pieces_of_memory() -> None:
    assert read(ir.tensor(ARRAY), 40, 8) == ARRAY[10:12].tobytes()


def test_a_file_is_opened_once(external: ir.ExternalTensor, tmp_path: Path) -> None:
    with WeightFiles() as files:
        files.reader(external)
        (tmp_path / "w.data").unlink()
        buffer = np.empty(400, np.uint8)
        files.reader(external)(0, buffer)
    assert buffer.tobytes() == ARRAY.tobytes()


def test_a_file_that_became_shorter_is_told(external: ir.ExternalTensor, tmp_path: Path) -> None:
    path = tmp_path / "w.data"
    end = path.stat().st_size - 4
    with path.open("r+b") as stream:
        stream.truncate(end)
    with pytest.raises(WeightsUnreadable) as refused:
        read(external, 0, 400)
    assert str(refused.value) == (
        f"data file 'w.data' ends inside tensor 'w' (at byte {end}); it was changed while it was being read"
    )


def test_the_place_of_a_tensor(external: ir.ExternalTensor, tmp_path: Path) -> None:
    place = external_place(external)
    assert place is not None
    assert (Path(place[0]), place[2]) == (tmp_path / "w.data", 400)
    assert external_place(ir.tensor(ARRAY)) is None


def test_flat_bytes_of_types_numpy_lacks() -> None:
    packed = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [3], [1, -2, 3])
    tensor = ir.from_proto(packed)
    assert flat_bytes(tensor).tobytes() == packed.raw_data or flat_bytes(tensor).tobytes() == tensor.tobytes()
    narrow = ir.tensor(np.array([1.5], ir.DataType.BFLOAT16.numpy()))
    assert flat_bytes(narrow).nbytes == 2
