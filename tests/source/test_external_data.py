"""External data: what may be read, and every refusal with its text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.errors import ModelError
from converter.source.external_data import ExternalDataForbidden, ExternalDataMissing, check_external_data
from converter.source.onnx_file import load
from tests.models.build import catalog, model

WEIGHT = np.arange(6, dtype=np.float32)
TEXT = "g (float[6] x) => (float[6] y) { y = Mul(x, w) }"


def external(name: str = "w", **entries: object) -> onnx.TensorProto:
    """A tensor of six floats whose bytes lie elsewhere."""
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[6])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "w.bin"} | entries).items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def write(folder: Path, tensor: onnx.TensorProto, content: bytes = WEIGHT.tobytes()) -> Path:
    proto = model(TEXT)
    proto.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    (folder / "w.bin").write_bytes(content)
    return path


class TestReads:
    @pytest.mark.parametrize("entries", [{}, {"length": 24}, {"offset": 0, "length": 24}, {"offset": 8}])
    def test_bytes_inside_the_file(self, tmp_path: Path, entries: dict[str, int]) -> None:
        content = bytes(entries.get("offset", 0)) + WEIGHT.tobytes()
        found = load(write(tmp_path, external(**entries), content), catalog())
        (tensor,) = found.index.constants.values()
        np.testing.assert_array_equal(tensor.numpy(), WEIGHT)
        assert found.facts.bytes == (tmp_path / "m.onnx").stat().st_size + len(content)

    def test_a_file_in_a_folder_below(self, tmp_path: Path) -> None:
        path = write(tmp_path, external(location="deep/w.bin"))
        (tmp_path / "deep").mkdir()
        (tmp_path / "w.bin").rename(tmp_path / "deep" / "w.bin")
        (tensor,) = load(path, catalog()).index.constants.values()
        np.testing.assert_array_equal(tensor.numpy(), WEIGHT)

    def test_a_link_inside_the_folder(self, tmp_path: Path) -> None:
        path = write(tmp_path, external(location="link.bin"))
        (tmp_path / "link.bin").symlink_to("w.bin")
        assert load(path, catalog()).facts.weight_bytes == 24

    def test_tensors_in_bodies_and_attributes(self, tmp_path: Path) -> None:
        proto = model("""
            g (float[6] x, bool c) => (float[6] y) {
              y = If(c) <then_branch = t () => (float[6] u) { u = Mul(x, w) },
                         else_branch = e () => (float[6] v) { k = Constant<value = float {0}>()  v = Mul(x, k) }>
            }""")
        proto.graph.initializer.append(external())
        body = proto.graph.node[0].attribute[1].g
        body.node[0].attribute[0].t.CopyFrom(external("k", location="k.bin"))
        path = tmp_path / "m.onnx"
        path.write_bytes(proto.SerializeToString())
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        with pytest.raises(
            ExternalDataMissing, match=r"external data 'k.bin' of tensor 'k' is missing beside 'm.onnx'"
        ):
            load(path, catalog())
        (tmp_path / "k.bin").write_bytes((2 * WEIGHT).tobytes())
        values = sorted(float(t.numpy().sum()) for t in load(path, catalog()).index.constants.values())
        assert values == [15.0, 30.0]


class TestForbidden:
    @pytest.mark.parametrize(
        "location", ["/etc/passwd", "../w.bin", "a/../../w.bin", "..\\w.bin", "a\\w.bin", ""],
        ids=["absolute", "up", "up inside", "backslash up", "backslash", "empty"],
    )  # fmt: skip
    def test_locations_outside_the_folder(self, tmp_path: Path, location: str) -> None:
        inside = tmp_path / "inside"
        inside.mkdir()
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        path = write(inside, external(location=location))
        with pytest.raises(ExternalDataForbidden) as refused:
            load(path, catalog())
        assert str(refused.value) == (
            f"tensor 'w' of 'm.onnx' points to external data '{location}'; "
            "only plain relative paths inside the model's folder are allowed"
        )

    def test_a_link_out_of_the_folder(self, tmp_path: Path) -> None:
        inside = tmp_path / "inside"
        inside.mkdir()
        (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
        path = write(inside, external(location="link.bin"))
        (inside / "link.bin").symlink_to("../secret.bin")
        with pytest.raises(ExternalDataForbidden) as refused:
            load(path, catalog())
        assert str(refused.value) == (
            "external data 'link.bin' of tensor 'w' leads outside the model's folder through a link; "
            "copy the file there"
        )

    @pytest.mark.parametrize(
        ("entries", "stated"),
        [({"length": 20}, "offset 0 and length 20"), ({"length": 0, "offset": 4}, "offset 4 and length 0")],
    )
    def test_ranges_that_make_no_sense(self, tmp_path: Path, entries: dict[str, int], stated: str) -> None:
        with pytest.raises(ExternalDataForbidden) as refused:
            load(write(tmp_path, external(**entries)), catalog())
        assert str(refused.value) == (
            f"external tensor 'w' states {stated}, its shape needs 24 bytes; the file is damaged or was edited"
        )

    @pytest.mark.parametrize(
        ("entries", "cause"),
        [({"offset": -4}, "External data offset must be non-negative, got -4 for tensor 'w'"),
         ({"length": -1}, "External data length must be non-negative, got -1 for tensor 'w'"),
         ({"offset": "ten"}, "invalid literal for int.* 'ten'")],
    )  # fmt: skip
    def test_numbers_that_cannot_be_read(self, tmp_path: Path, entries: dict[str, object], cause: str) -> None:
        with pytest.raises(ModelError, match=rf"'m.onnx' cannot be read as an ONNX graph: {cause}; check it with"):
            load(write(tmp_path, external(**entries)), catalog())

    def test_a_tensor_without_a_location(self, tmp_path: Path) -> None:
        tensor = external()
        del tensor.external_data[:]
        with pytest.raises(ModelError, match=r"m.onnx"):
            load(write(tmp_path, tensor), catalog())


class TestMissing:
    def test_no_such_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, external(location="gone.bin"))
        with pytest.raises(ExternalDataMissing) as refused:
            load(path, catalog())
        assert str(refused.value) == (
            "external data 'gone.bin' of tensor 'w' is missing beside 'm.onnx'; copy the data file into the same folder"
        )

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        path = write(tmp_path, external(location="d"))
        (tmp_path / "d").mkdir()
        with pytest.raises(ExternalDataMissing, match=r"external data 'd' of tensor 'w' is missing"):
            load(path, catalog())

    @pytest.mark.parametrize("entries", [{}, {"offset": 4}, {"offset": 25}, {"offset": 2**62}])
    def test_a_file_that_is_too_short(self, tmp_path: Path, entries: dict[str, int]) -> None:
        offset = entries.get("offset", 0)
        size = 23 if not offset else 24
        path = write(tmp_path, external(**entries), bytes(size))
        with pytest.raises(ExternalDataMissing) as refused:
            load(path, catalog())
        assert str(refused.value) == (
            f"external tensor 'w' needs bytes {offset}..{offset + 24} of 'w.bin', which has {size}; "
            "copy the whole data file"
        )

    def test_a_model_without_a_folder(self) -> None:
        proto = model(TEXT)
        proto.graph.initializer.append(external())
        with pytest.raises(ExternalDataMissing) as refused:
            load(proto, catalog())
        assert str(refused.value) == (
            "tensor 'w' lies in external data 'w.bin', but the model came without a folder; "
            "give the path of the .onnx file"
        )


def test_each_file_is_counted_once(tmp_path: Path) -> None:
    proto = model("g (float[6] x) => (float[6] y) { h = Mul(x, w)  y = Mul(h, v) }")
    proto.graph.initializer.extend([external("w"), external("v", offset=24)])
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes() * 2)
    parsed = ir.from_proto(proto)
    ir.external_data.set_base_dir(parsed.graph, str(tmp_path))
    assert check_external_data(parsed, str(tmp_path), "m.onnx") == 48
