"""Writing: one pair of files, named from content, complete or not there at all."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.rewrite.stream import WeightStream
from converter.source import draft as draft_module
from converter.source import save as save_module
from converter.source.onnx_file import load
from converter.source.save import OutputFailure, SavedModel, save
from tests.models.build import catalog, drawn, model

BIG = np.arange(1024, dtype=np.float32)
TEXT = "g (float[1024] x) => (float[1024] y) { y = Mul(x, w) }"


def given(scale: float = 1.0) -> ir.Model:
    return ir.from_proto(model(TEXT, weights={"w": scale * BIG}))


def write(made: ir.Model, path: Path, external: bool = False) -> SavedModel:
    return save(made, path, external, [], set(), WeightStream())


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


class TestInline:
    def test_one_file_with_everything(self, tmp_path: Path) -> None:
        path = tmp_path / "out.onnx"
        saved = write(given(), path)
        assert names(tmp_path) == ["out.onnx"]
        content = path.read_bytes()
        assert saved == SavedModel((str(path),), len(content), hashlib.sha256(content).hexdigest())
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]), BIG)

    def test_the_same_bytes_each_time(self, tmp_path: Path) -> None:
        assert write(given(), tmp_path / "a.onnx").sha256 == write(given(), tmp_path / "b.onnx").sha256

    def test_large_weights_go_outside(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(save_module, "INLINE_LIMIT", BIG.nbytes - 1)
        assert len(write(given(), tmp_path / "out.onnx").files) == 2

    def test_training_info_is_put_back(self, tmp_path: Path) -> None:
        training = [onnx.TrainingInfoProto(update_binding=[onnx.StringStringEntryProto(key="w", value="v")])]
        saved = save(given(), tmp_path / "out.onnx", False, training, {"w"}, WeightStream())
        assert [f.kind for f in saved.findings] == ["dropped"]
        assert not save(given(), tmp_path / "out.onnx", False, training, set(), WeightStream()).findings
        assert len(onnx.load(tmp_path / "out.onnx").training_info) == 1


class TestPair:
    def test_the_data_file_is_named_by_its_content(self, tmp_path: Path) -> None:
        saved = write(given(), tmp_path / "out.onnx", external=True)
        main, data = map(Path, saved.files)
        assert main.name == "out.onnx"
        assert re.fullmatch(r"out-[0-9a-f]{16}\.data", data.name)
        assert write(given(), tmp_path / "out.onnx", external=True).files[1] == str(data)
        assert names(tmp_path) == sorted([main.name, data.name])
        assert saved.bytes == main.stat().st_size + data.stat().st_size
        found = load(main, catalog())
        np.testing.assert_array_equal(next(iter(found.index.constants.values())).numpy(), BIG)

    def test_other_content_gets_another_name(self, tmp_path: Path) -> None:
        first = write(given(), tmp_path / "out.onnx", external=True)
        second = write(given(2.0), tmp_path / "out.onnx", external=True)
        assert first.files[1] != second.files[1]

    def test_the_model_names_no_path_of_this_machine(self, tmp_path: Path) -> None:
        write(given(), tmp_path / "out.onnx", external=True)
        assert str(tmp_path).encode() not in (tmp_path / "out.onnx").read_bytes()

    def test_small_tensors_stay_inside(self, tmp_path: Path) -> None:
        made = ir.from_proto(model("g (float[2] x) => (float[2] y) { y = Mul(x, w) }", weights={"w": BIG[:2]}))
        assert len(write(made, tmp_path / "out.onnx", external=True).files) == 1

    def test_weights_in_bodies(self, tmp_path: Path) -> None:
        proto = model("""
            g (float[1024] x, bool c) => (float[1024] y) {
              y = If(c) <then_branch = t () => (float[1024] u) { u = Mul(x, k) },
                         else_branch = e () => (float[1024] v) { v = Abs(x) }>
            }""", weights={"k": BIG[:1]})  # fmt: skip
        proto.graph.node[0].attribute[0].g.initializer.append(onnx.numpy_helper.from_array(BIG, "inner"))
        proto.graph.node[0].attribute[0].g.node[0].input[1] = "inner"
        write(ir.from_proto(proto), tmp_path / "out.onnx", external=True)
        found = load(tmp_path / "out.onnx", catalog())
        assert sum(float(t.numpy().sum()) for t in found.index.constants.values()) == BIG.sum()

    def test_out_equal_to_model_with_external_data(self, tmp_path: Path) -> None:
        """Weights are mapped from the old pair while the new one is written; the old data file is left alone."""
        path = tmp_path / "model.onnx"
        onnx.save(model(TEXT, weights={"w": BIG}), path, save_as_external_data=True, location="model.data")
        found = load(path, catalog())
        before = drawn(found.index.model)
        write(found.index.model, path, external=True)
        again = load(path, catalog())
        assert drawn(again.index.model) == before
        assert (tmp_path / "model.data").exists()
        np.testing.assert_array_equal(next(iter(again.index.constants.values())).numpy(), BIG)

    def test_writing_over_its_own_output(self, tmp_path: Path) -> None:
        """The data file that is mapped has just the name that is written."""
        first = write(given(), tmp_path / "out.onnx", external=True)
        found = load(tmp_path / "out.onnx", catalog())
        second = write(found.index.model, tmp_path / "out.onnx", external=True)
        assert first == second
        np.testing.assert_array_equal(
            next(iter(load(tmp_path / "out.onnx", catalog()).index.constants.values())).numpy(), BIG
        )

    @pytest.mark.parametrize("external", [False, True])
    def test_an_output_that_is_a_link_is_written_where_it_leads(self, tmp_path: Path, external: bool) -> None:
        for name in ("here", "there"):
            (tmp_path / name).mkdir()
        (tmp_path / "there" / "real.onnx").touch()
        link = tmp_path / "here" / "link.onnx"
        link.symlink_to("../there/real.onnx")
        saved = write(given(), link, external)
        assert names(tmp_path / "here") == ["link.onnx"]
        assert link.is_symlink()
        assert all(Path(f).exists() for f in saved.files)
        assert load(link, catalog()).facts.weight_bytes == BIG.nbytes


class TestRefusals:
    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(OutputFailure, match=r"output '.*' is a folder; give a file name"):
            write(given(), tmp_path)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(OutputFailure, match=r"the folder of output '.*' does not exist; make it first"):
            write(given(), tmp_path / "none" / "out.onnx")

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> int:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(draft_module.os, "open", refuse)
        with pytest.raises(OutputFailure, match=r"output '.*out.onnx' cannot be written: Permission denied"):
            write(given(), tmp_path / "out.onnx")

    @pytest.mark.parametrize("external", [False, True])
    def test_a_full_disk_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
    ) -> None:
        path = tmp_path / "out.onnx"
        path.write_bytes(b"old")

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(draft_module.os, "write", full)
        with pytest.raises(OutputFailure, match=r"cannot be written: No space left on device"):
            write(given(), path, external)
        assert names(tmp_path) == ["out.onnx"]
        assert path.read_bytes() == b"old"

    def test_a_rename_that_fails_takes_the_data_file_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = Path.replace

        def replace(self: Path, target: Path) -> Path:
            if str(target).endswith(".onnx"):
                raise OSError(5, "Input/output error")
            return real(self, target)

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(OutputFailure, match=r"Input/output error"):
            write(given(), tmp_path / "out.onnx", external=True)
        assert names(tmp_path) == []

    def test_a_failed_rewrite_keeps_the_pair_that_was_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The data file of the old pair has the very name of the new one."""
        path = tmp_path / "out.onnx"
        write(given(), path, external=True)
        before = names(tmp_path)

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(draft_module.os, "write", full)
        with pytest.raises(OutputFailure):
            write(given(), path, external=True)
        assert names(tmp_path) == before
        assert load(path, catalog()).facts.weight_bytes == BIG.nbytes


def test_what_travels_through_a_file(tmp_path: Path) -> None:
    """Metadata, doc strings, quantization annotations, producer and node metadata are the user's."""
    proto = model(TEXT, weights={"w": BIG})
    proto.producer_name, proto.producer_version, proto.domain, proto.model_version = "maker", "1.2", "org.example", 7
    proto.doc_string, proto.graph.doc_string, proto.graph.node[0].doc_string = "model", "graph", "node"
    proto.graph.input[0].doc_string, proto.graph.initializer[0].doc_string = "input", "weight"
    proto.metadata_props.add(key="licence", value="free")
    proto.graph.node[0].metadata_props.add(key="source", value="layer 1")
    annotation = proto.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    source = tmp_path / "in.onnx"
    onnx.save(proto, source)
    write(load(source, catalog()).index.model, tmp_path / "out.onnx")
    made = onnx.load(tmp_path / "out.onnx")
    for name in ("producer_name", "producer_version", "domain", "model_version", "doc_string", "ir_version"):
        assert getattr(made, name) == getattr(proto, name), name
    assert made.metadata_props == proto.metadata_props
    assert made.opset_import == proto.opset_import
    assert made.graph.doc_string == "graph"
    assert made.graph.node[0].doc_string == "node"
    assert made.graph.node[0].metadata_props == proto.graph.node[0].metadata_props
    assert made.graph.quantization_annotation == proto.graph.quantization_annotation
    assert (made.graph.input[0].doc_string, made.graph.initializer[0].doc_string) == ("input", "weight")
    assert made.graph.name == "g"
