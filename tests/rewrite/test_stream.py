"""Streamed weights equal the in-memory path bit for bit, whatever the pieces, formats and threads."""

from __future__ import annotations

import os

import numpy as np
import onnx_ir as ir
import pytest

from converter.formats import BF16, FP16
from converter.rewrite import stream
from converter.rewrite.narrow_initializers import NarrowTensor
from converter.rewrite.stream import ALIGNMENT, WeightStream, lay_out
from converter.runtime.session import CastInto
from converter.source.weights import PIECE_BYTES, WeightsUnreadable

PIECE = PIECE_BYTES // 4


def native_caster(fmt, source, target):
    return CastInto(fmt.onnx_type, source, target)


def external(folder, array, name="w") -> ir.ExternalTensor:
    (folder / f"{name}.data").write_bytes(array.tobytes())
    return ir.ExternalTensor(
        f"{name}.data", 0, array.nbytes, ir.DataType.FLOAT, shape=ir.Shape(array.shape), name=name, base_dir=str(folder)
    )


def written(path, tensors, make_caster=stream.numpy_caster) -> tuple[list[bytes], stream.WrittenWeights]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        found = WeightStream(make_caster)(tensors, descriptor)
    finally:
        os.close(descriptor)
    content = path.read_bytes()
    assert len(content) == found.size
    return [content[o : o + int(t.nbytes)] for o, t in zip(found.offsets, tensors, strict=True)], found


def hard_values(count, seed=0) -> np.ndarray:
    """Random bit patterns: every exponent, subnormals, infinities; NaN as the one both casts agree on."""
    bits = np.random.default_rng(seed).integers(0, 2**32, count, np.uint32)
    values = bits.view(np.float32).copy()
    values[np.isnan(values)] = np.nan
    ties = np.float32(1) + np.arange(16, dtype=np.float32) * np.float32(2.0**-11)
    values[:16] = ties[: min(16, count)]
    return values


@pytest.mark.parametrize("fmt", [FP16, BF16], ids=["fp16", "bf16"])
@pytest.mark.parametrize("make_caster", [stream.numpy_caster, native_caster], ids=["numpy", "native"])
@pytest.mark.parametrize("count", [16, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 77])
def test_equals_the_in_memory_path(tmp_path, fmt, make_caster, count):
    array = hard_values(count)
    tensor = NarrowTensor(external(tmp_path, array), fmt, "w")
    (content,), _ = written(tmp_path / "out", [tensor], make_caster)
    assert content == tensor.tobytes() == NarrowTensor(ir.tensor(array), fmt, "w").tobytes()


@pytest.mark.parametrize("make_caster", [stream.numpy_caster, native_caster], ids=["numpy", "native"])
def test_saturates_where_planned(tmp_path, make_caster):
    array = np.array([-3e38, -1, 0, 1, 3e38], np.float32)
    tensor = NarrowTensor(external(tmp_path, array), FP16, "w", bound=32752.0)
    (content,), _ = written(tmp_path / "out", [tensor], make_caster)
    assert np.frombuffer(content, np.float16).tolist() == [-32752.0, -1, 0, 1, 32752.0]


def test_wide_and_foreign_tensors_are_copied(tmp_path):
    floats = np.arange(PIECE + 5, dtype=np.float32)
    tensors = [external(tmp_path, floats), ir.tensor(np.arange(700, dtype=np.int64), name="i")]
    contents, _ = written(tmp_path / "out", tensors)
    assert contents == [t.tobytes() for t in tensors]


def test_offsets_are_pages_and_shared_tensors_lie_once(tmp_path):
    array = np.arange(5000, dtype=np.float32)
    first, twin = external(tmp_path, array), external(tmp_path, array)
    tensors = [
        NarrowTensor(first, FP16, "a"),
        NarrowTensor(twin, FP16, "b"),
        NarrowTensor(first, FP16, "limited", bound=100.0),
        NarrowTensor(first, BF16, "c"),
        first,
    ]
    offsets, slots = lay_out(tensors)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    assert offsets[0] == offsets[1]
    assert len(set(offsets)) == len(slots) == 4
    contents, _ = written(tmp_path / "out", tensors)
    assert contents[0] == contents[1]
    assert contents == [t.tobytes() for t in tensors]


def test_name_follows_the_content_alone(tmp_path, monkeypatch):
    tensors = [NarrowTensor(external(tmp_path, hard_values(2 * PIECE + 9, k), f"w{k}"), FP16, "w") for k in range(3)]
    _, first = written(tmp_path / "one", tensors)
    monkeypatch.setattr(stream, "WRITERS", 5)
    _, second = written(tmp_path / "two", tensors, native_caster)
    assert first == second
    changed = hard_values(2 * PIECE + 9, 0)
    changed[-1] += 1
    tensors[0] = NarrowTensor(external(tmp_path, changed, "other"), FP16, "w")
    _, third = written(tmp_path / "three", tensors)
    assert third.digest != first.digest


def test_zeros_become_holes(tmp_path):
    size = 64 * PIECE_BYTES
    (tmp_path / "w.data").touch()
    os.truncate(tmp_path / "w.data", size)
    source = ir.ExternalTensor(
        "w.data", 0, size, ir.DataType.FLOAT, shape=ir.Shape([size // 4]), name="w", base_dir=str(tmp_path)
    )
    (content,), _ = written(tmp_path / "out", [NarrowTensor(source, FP16, "w")])
    assert not any(content)
    assert (tmp_path / "out").stat().st_blocks * 512 < size // 4


def test_first_failure_stops_every_thread_and_is_raised(tmp_path):
    tensors = [NarrowTensor(external(tmp_path, hard_values(PIECE, k), f"w{k}"), FP16, "w") for k in range(8)]
    os.truncate(tmp_path / "w3.data", 8)
    with pytest.raises(WeightsUnreadable, match=r"ends inside tensor 'w3'"):
        written(tmp_path / "out", tensors)


def test_progress_counts_bytes(tmp_path):
    seen = []
    tensors = [NarrowTensor(external(tmp_path, hard_values(200 * PIECE), "w"), FP16, "w")]
    descriptor = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    WeightStream(progress=lambda done, total: seen.append((done, total)))(tensors, descriptor)
    os.close(descriptor)
    assert seen
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {200 * PIECE * 2}
