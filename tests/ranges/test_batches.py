"""Sample batches: every way to give one, and every refusal with its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from converter.errors import BatchError
from converter.ranges.batches import Batches, check_batch, required_inputs
from tests.models.build import indexed

ONE = indexed("g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }")
TWO = indexed("""
    g (float[N, 2] x, int64 k, float[2] w = {1, 2}) => (float[N, 2] y) {
      f = Cast<to = 1>(k)  h = Mul(x, f)  y = Mul(h, w) }""")
X = np.ones((3, 2), np.float32)
K = np.array(2)


def refusal(given: dict[str, Any], index: Any = TWO) -> str:
    with pytest.raises(BatchError) as refused:
        check_batch(given, index, "b")
    return str(refused.value)


def reading(source: Any, index: Any = ONE) -> str:
    with pytest.raises(BatchError) as refused:
        list(Batches([source], index))
    return str(refused.value)


class TestSources:
    def test_a_mapping(self) -> None:
        (batch,) = Batches([{"k": K, "x": X}], TWO)
        assert (batch.name, list(batch.feeds)) == ("batch 0", ["x", "k"])

    def test_npz(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "b.npz", x=X, k=K)
        (batch,) = Batches([tmp_path / "b.npz"], TWO)
        assert batch.name == "b.npz"
        np.testing.assert_array_equal(batch.feeds["x"], X)

    def test_npy_for_a_model_with_one_input(self, tmp_path: Path) -> None:
        np.save(tmp_path / "b.npy", X)
        (batch,) = Batches([str(tmp_path / "b.npy")], ONE)
        np.testing.assert_array_equal(batch.feeds["x"], X)

    def test_npy_counts_inputs_without_a_default(self, tmp_path: Path) -> None:
        index = indexed("g (float[2] x, float[2] w = {1, 2}) => (float[2] y) { y = Mul(x, w) }")
        np.save(tmp_path / "b.npy", X[0])
        assert required_inputs(index) == ["x"]
        assert list(next(iter(Batches([tmp_path / "b.npy"], index))).feeds) == ["x"]

    def test_safetensors(self, tmp_path: Path) -> None:
        save_file({"x": X, "k": K}, tmp_path / "b.safetensors")
        (batch,) = Batches([tmp_path / "b.safetensors"], TWO)
        assert batch.feeds["k"] == 2

    def test_a_folder_in_order_of_names(self, tmp_path: Path) -> None:
        for name in ("b", "a"):
            np.savez(tmp_path / f"{name}.npz", x=X)
        np.save(tmp_path / "c.npy", X)
        (tmp_path / "read.me").touch()
        batches = Batches([tmp_path], ONE)
        assert [b.name for b in batches] == ["a.npz", "b.npz", "c.npy"]
        assert len(batches) == 3

    def test_several_sources_in_order(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "z.npz", x=X)
        assert [b.name for b in Batches([tmp_path / "z.npz", {"x": X}], ONE)] == ["z.npz", "batch 1"]

    def test_files_are_read_again_and_one_at_a_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        np.savez(tmp_path / "a.npz", x=X)
        np.savez(tmp_path / "b.npz", x=2 * X)
        batches = Batches([tmp_path], ONE)
        walk = iter(batches)
        first = next(walk)
        (tmp_path / "b.npz").unlink()
        assert first.feeds["x"][0, 0] == 1
        with pytest.raises(BatchError, match=r"b.npz' does not exist"):
            next(walk)


class TestFiles:
    def test_none(self) -> None:
        with pytest.raises(BatchError) as refused:
            Batches([], ONE)
        assert str(refused.value) == "no sample batch was given; pass --samples FILE.npz (keys are the input names)"

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "none.npz"
        assert reading(path) == f"sample batch '{path}' does not exist; check the path"

    def test_of_no_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npz"
        path.touch()
        assert reading(path) == f"sample batch '{path}' is empty (0 bytes); write it with numpy.savez"

    def test_an_unknown_ending(self, tmp_path: Path) -> None:
        path = tmp_path / "b.csv"
        path.write_text("1,2")
        assert reading(path) == (f"sample batch '{path}' has an unknown ending; use one of .npz, .npy, .safetensors")

    def test_a_folder_without_batches(self, tmp_path: Path) -> None:
        assert reading(tmp_path) == (
            f"folder '{tmp_path}' holds no .npz, .npy, .safetensors file; put the sample batches there"
        )

    @pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors"])
    @pytest.mark.parametrize("content", [b"x", b"PK\x03\x04broken", b"\x93NUMPY\x01\x00v", b"\x08" + bytes(40)],
                             ids=["letter", "zip", "npy", "zeros"])  # fmt: skip
    def test_damaged(self, tmp_path: Path, suffix: str, content: bytes) -> None:
        path = tmp_path / f"b{suffix}"
        path.write_bytes(content)
        message = reading(path)
        assert message.startswith(f"sample batch '{path}' cannot be read: ")
        assert message.endswith("; write it with numpy.savez")

    def test_a_cut_archive(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npz"
        np.savez(path, x=X)
        path.write_bytes(path.read_bytes()[:-30])
        assert "cannot be read: " in reading(path)

    def test_a_damaged_member(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npz"
        np.savez(path, x=X)
        content = bytearray(path.read_bytes())
        content[content.index(X.tobytes())] ^= 1
        path.write_bytes(bytes(content))
        assert "cannot be read: Bad CRC-32" in reading(path)

    def test_a_single_array_that_is_called_npz(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npz"
        with path.open("wb") as stream:
            np.save(stream, X)
        assert "cannot be read: it holds a single array, not an archive of named arrays" in reading(path)

    def test_an_archive_that_is_called_npy(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npy"
        with path.open("wb") as stream:
            np.savez(stream, x=X)
        assert "it holds an archive of named arrays, not a single one; call it .npz" in reading(path)

    def test_pickles_are_not_loaded(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npz"
        np.savez(path, x=np.array([{}], object))
        assert reading(path) == (
            "array 'x' of a sample batch holds Python objects, not numbers; give its elements one numeric type"
        )

    def test_text_with_an_archives_name(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npz"
        path.write_text("hello")
        assert "it is no NumPy archive (it begins with b'hello'); write it with numpy.savez" in reading(path)

    def test_npy_for_a_model_with_more_inputs(self, tmp_path: Path) -> None:
        path = tmp_path / "b.npy"
        np.save(path, X)
        assert reading(path, TWO) == (
            f"'{path}' holds one unnamed array, but the model has 2 inputs (x, k); use an .npz with their names"
        )


class TestInputs:
    def test_a_key_too_many(self) -> None:
        assert refusal({"x": X, "k": K, "q": K}) == (
            "batch 'b' has key 'q', which is no input of the model; its inputs are 'x', 'k', 'w': "
            "rename or remove it, or is it the batch of another model?"
        )

    def test_a_key_too_few(self) -> None:
        assert refusal({"x": X}) == (
            "batch 'b' lacks input 'k' (tensor(int64)); add it under that key. The batch has 'x'"
        )

    def test_an_empty_batch(self) -> None:
        assert refusal({}).endswith("The batch has none")

    def test_long_lists_are_cut(self) -> None:
        given = {f"q{k}": K for k in range(15)}
        index = indexed("g (float[2] x) => (float[2] y) { y = Relu(x) }")
        assert "'x'" in refusal(given, index)
        many = ", ".join(f"float[2] i{k}" for k in range(14))
        index = indexed(f"g ({many}) => (float[2] y) {{ y = Relu(i0) }}")
        assert refusal({"z": X}, index).endswith(
            "'i10', 'i11' and 2 more: rename or remove it, or is it the batch of another model?"
        )

    def test_a_default_may_be_left_out_or_given(self) -> None:
        assert list(check_batch({"x": X, "k": K}, TWO, "b")) == ["x", "k"]
        assert list(check_batch({"x": X, "k": K, "w": X[0]}, TWO, "b")) == ["x", "k", "w"]

    @pytest.mark.parametrize(
        ("name", "array", "message"),
        [
            ("x", X.astype(np.float64),
             "input 'x' of batch 'b' has element type float64, the model takes float; "
             "convert it (for example with .astype('float32'))"),
            ("k", np.array(2, np.int32),
             "input 'k' of batch 'b' has element type int32, the model takes int64; "
             "convert it (for example with .astype('int64'))"),
            ("x", X[0],
             "input 'x' of batch 'b' has rank 1 (shape [2]), the model takes rank 2 [N, 2]; reshape it"),
            ("x", np.ones((3, 3), np.float32),
             "input 'x' of batch 'b' has size 3 on axis 1 (shape [3, 3]), the model takes 2 there [N, 2]; "
             "cut or pad it"),
            ("k", np.ones(1, np.int64), "input 'k' of batch 'b' has rank 1 (shape [1]), the model takes rank 0 []; "
             "reshape it"),
        ],
        ids=["float64", "int32", "rank", "size", "scalar"],
    )  # fmt: skip
    def test_types_and_shapes(self, name: str, array: Any, message: str) -> None:
        assert refusal({"x": X, "k": K} | {name: array}) == message

    def test_a_free_dimension_takes_any_size(self) -> None:
        for size in (0, 1, 7):
            assert check_batch({"x": np.ones((size, 2), np.float32)}, ONE, "b")["x"].shape == (size, 2)

    def test_an_input_without_a_shape_takes_any_rank(self) -> None:
        index = indexed("g (float x) => (float y) { y = Relu(x) }")
        index.model.graph.inputs[0].shape = None
        for rank in range(3):
            check_batch({"x": np.ones((1,) * rank, np.float32)}, index, "b")

    def test_python_numbers_become_arrays(self) -> None:
        assert check_batch({"x": X, "k": 3}, TWO, "b")["k"].dtype == np.int64

    def test_arrays_become_contiguous_and_keep_rank_zero(self) -> None:
        given = check_batch({"x": np.ones((2, 3), np.float32).T, "k": K}, TWO, "b")
        assert given["x"].flags.c_contiguous
        assert given["k"].shape == ()


class TestOtherTypes:
    def test_strings(self) -> None:
        index = indexed("g (string[2] t) => (string[2] u) { u = Identity(t) }")
        assert check_batch({"t": np.array(["a", "b"])}, index, "b")["t"].dtype == object
        message = refusal({"t": np.zeros(2, np.float32)}, index)
        assert message.endswith("has element type float32, the model takes string; convert it "
                                "(for example with .astype('str'))")  # fmt: skip

    @pytest.mark.parametrize("kind", ["float16", "bfloat16"])
    def test_narrow_inputs_take_float32_too(self, kind: str) -> None:
        index = indexed(f"g ({kind}[2] x) => ({kind}[2] y) {{ y = Neg(x) }}")
        check_batch({"x": np.ones(2, np.float32)}, index, "b")
        assert "has element type float64" in refusal({"x": np.ones(2)}, index)

    def test_sequences(self) -> None:
        index = indexed("g (seq(float[2]) q) => (float[2] y) <int64 i = {0}> { y = SequenceAt(q, i) }")
        assert len(check_batch({"q": [X[0], X[1]]}, index, "b")["q"]) == 2
        assert "input 'q' of batch 'b' has element type float64" in refusal({"q": [np.ones(2)]}, index)

    def test_optionals(self) -> None:
        index = indexed("g (optional(float[2]) o) => (bool y) { y = OptionalHasElement(o) }", 18)
        assert check_batch({"o": None}, index, "b")["o"] is None
        assert check_batch({"o": np.array([], object)}, index, "b")["o"] is None
        assert check_batch({"o": X[0]}, index, "b")["o"].shape == (2,)

    def test_optional_sequences(self) -> None:
        index = indexed("g (optional(seq(float[2])) o) => (bool y) { y = OptionalHasElement(o) }", 18)
        assert len(check_batch({"o": [X[0]]}, index, "b")["o"]) == 1
