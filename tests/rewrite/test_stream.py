"""Writing weights piece by piece: the bytes are those of a plain write, whatever the pieces and threads."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.formats import BF16, FP16, FloatFormat
from converter.rewrite import stream as stream_module
from converter.rewrite.narrow_initializers import NarrowTensor, to_narrow
from converter.rewrite.stream import ALIGNMENT, WeightStream, lay_out
from converter.source.save import WrittenWeights
from tests.models.build import model


def tensor(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str = "w") -> ir.TensorProtocol:
    return ir.tensor(array, name=name)


def written(*tensors: ir.TensorProtocol, **more: object) -> tuple[WrittenWeights, bytes]:
    with tempfile.TemporaryFile() as file:
        found = WeightStream(**more)(tensors, file.fileno())  # type: ignore[arg-type]
        file.seek(0)
        return found, file.read()


def external(folder: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> ir.TensorProtocol:
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }", weights={"w": array})
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    found = ir.load(folder / "m.onnx").graph.initializers["w"].const_value
    assert isinstance(found, ir.ExternalTensor)
    return found


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "PIECE_BYTES", 64)


@pytest.mark.usefixtures("small_pieces")
class TestBytes:
    @pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 1000])
    def test_as_they_are(self, size: int, rng: np.random.Generator) -> None:
        array = rng.standard_normal(size).astype(np.float32)
        found, content = written(tensor(array))
        assert content == array.tobytes()
        assert (found.offsets, found.size) == ((0,), array.nbytes)

    @pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
    @pytest.mark.parametrize("bound", [None, 1.0])
    def test_narrow(self, fmt: FloatFormat, bound: float | None, rng: np.random.Generator) -> None:
        array = np.append(rng.standard_normal((5, 37)), [1e9, -np.inf, np.nan]).astype(np.float32)
        _, content = written(NarrowTensor(tensor(array), fmt, "n", bound))
        assert content == to_narrow(array, fmt, bound).tobytes()

    def test_from_a_file(self, tmp_path: Path, rng: np.random.Generator) -> None:
        array = rng.standard_normal((7, 33)).astype(np.float32)
        source = external(tmp_path, array)
        assert written(source)[1] == array.tobytes()
        assert written(NarrowTensor(source, FP16, "n"))[1] == array.astype(np.float16).tobytes()

    @pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_, np.float64])
    def test_other_types(self, dtype: type, rng: np.random.Generator) -> None:
        array = rng.integers(0, 2, 100).astype(dtype)
        assert written(tensor(array))[1] == array.tobytes()

    def test_zeros_are_holes_that_read_as_zeros(self) -> None:
        found, content = written(tensor(np.zeros(100, np.float32)))
        assert content == bytes(400)
        assert found.size == 400

    def test_the_digest_follows_the_content(self) -> None:
        ones, twos = (tensor(np.full(100, v, np.float32)) for v in (1, 2))
        assert written(ones)[0].digest == written(ones)[0].digest != written(twos)[0].digest
        assert written(ones, twos)[0].digest != written(twos, ones)[0].digest

    def test_progress_ends_within_the_size(self) -> None:
        told: list[tuple[int, int]] = []
        written(tensor(np.ones(10_000, np.float32)), progress=lambda *step: told.append(step))
        assert told
        assert all(0 <= done <= size == 40_000 for done, size in told)

    def test_a_failure_stops_every_thread_and_is_raised(self) -> None:
        def fail() -> ir.TensorProtocol:
            raise OSError(5, "Input/output error")

        lazy = ir.LazyTensor(fail, dtype=ir.DataType.FLOAT, shape=ir.Shape([100]), name="w")
        with pytest.raises(OSError, match=r"Input/output error"):
            written(tensor(np.ones(100, np.float32)), lazy)


class TestLayout:
    def test_tensors_start_on_pages_of_their_own(self) -> None:
        offsets, slots = lay_out([tensor(np.ones(3, np.float32)), tensor(np.ones(ALIGNMENT, np.int8), "v"),
                                  tensor(np.ones(1, np.int8), "u")])  # fmt: skip
        assert offsets == [0, ALIGNMENT, 2 * ALIGNMENT]
        assert [s.end for s in slots] == [12, 2 * ALIGNMENT, 2 * ALIGNMENT + 1]

    def test_equal_tensors_share_one_place(self, tmp_path: Path) -> None:
        source = external(tmp_path, np.ones(100, np.float32))
        narrow = NarrowTensor(source, FP16, "n")
        twin, limited = NarrowTensor(source, FP16, "other"), NarrowTensor(source, FP16, "limited", 1.0)
        offsets, slots = lay_out([source, narrow, source, twin, limited, NarrowTensor(source, BF16, "b")])
        assert offsets[0] == offsets[2]
        assert offsets[1] == offsets[3]
        assert len(slots) == 4

    def test_nothing_to_write(self) -> None:
        found, content = written()
        assert (found.offsets, found.size, content) == ((), 0, b"")
