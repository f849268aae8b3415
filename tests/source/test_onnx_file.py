"""Reading files: what is refused and how, what is inlined, made dense, kept, or named as dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from converter.errors import InputError, ModelError
from converter.source import onnx_file
from converter.source.onnx_file import load, require_onnx, restore
from tests.models.build import catalog, drawing, drawn, loaded, model

RELU = "g (float[2] x) => (float[2] y) { y = Relu(x) }"


class TestFiles:
    def test_a_path_and_its_facts(self, tmp_path: Path) -> None:
        path = tmp_path / "relu.onnx"
        onnx.save(model(RELU, weights={"unused": np.zeros(3, np.float32)}), path)
        found = load(path, catalog())
        facts = found.facts
        assert (facts.name, facts.opset, facts.nodes, facts.graph) == ("relu.onnx", 17, 1, "g")
        assert (facts.bytes, facts.weight_bytes) == (path.stat().st_size, 12)
        assert len(facts.sha256) == 64
        assert found.base_dir == str(tmp_path)

    def test_a_proto_is_copied_not_taken(self) -> None:
        proto = model(RELU)
        before = proto.SerializeToString()
        loaded(proto)
        assert proto.SerializeToString() == before

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "model 'PATH' is empty (0 bytes); export or download it again"),
            (b"not a model at all", "'PATH' is not an ONNX model (its first bytes are 6e 6f 74 20 61 20 6d 6f); "
             "give a file that onnx.load accepts"),
            (b"\x93NUMPY\x01\x00", "is not an ONNX model (its first bytes are 93 4e 55 4d 50 59 01 00)"),
            (onnx.ModelProto(ir_version=8).SerializeToString(), "is not an ONNX model (its first bytes are 08 08)"),
        ],
        ids=["empty", "text", "npy", "no graph"],
    )  # fmt: skip
    def test_what_is_no_model_is_refused(self, tmp_path: Path, content: bytes, message: str) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        with pytest.raises(ModelError) as refused:
            load(path, catalog())
        assert message.replace("PATH", str(path)) in str(refused.value)

    def test_a_cut_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.onnx"
        path.write_bytes(model(RELU, weights={"w": np.ones(100, np.float32)}).SerializeToString()[:-50])
        with pytest.raises(ModelError, match=r"'.*cut.onnx' is not an ONNX model"):
            load(path, catalog())

    def test_an_archive_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "model.pt"
        with path.open("wb") as stream:
            np.savez(stream, x=np.zeros(1))
        with pytest.raises(
            ModelError, match=r"is a zip archive \(PyTorch or NumPy\?\), not an ONNX file; give an .onnx"
        ):
            load(path, catalog())

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"model '.*none.onnx' does not exist; check the path"):
            load(tmp_path / "none.onnx", catalog())

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match=r"model '.*' is a folder; give the .onnx file inside it"):
            load(tmp_path, catalog())

    def test_an_unreadable_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(self: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", refuse)
        with pytest.raises(ModelError, match=r"model '.*' cannot be read: Permission denied"):
            load(tmp_path / "m.onnx", catalog())

    def test_what_onnx_ir_cannot_read(self, tmp_path: Path) -> None:
        proto = model(RELU)
        proto.graph.input.append(onnx.helper.make_tensor_value_info("odd", 99, [1]))
        with pytest.raises(ModelError, match=r"'g' cannot be read as an ONNX graph: .*; check it with onnx.checker"):
            loaded(proto)

    def test_a_path_is_checked_without_heavy_imports(self, tmp_path: Path) -> None:
        require_onnx(tmp_path)
        with pytest.raises(InputError, match=r"model '.*none' does not exist; check the path"):
            require_onnx(tmp_path / "none")


class TestFunctions:
    def test_a_call_becomes_its_nodes(self) -> None:
        found = loaded(
            model(
                """
                g (float[2] x) => (float[2] y) { y = f.Twice(x) }
                <domain: "f", opset_import: ["" : 17]>
                Twice (a) => (b) { b = Add(a, a) }
                """,
                domains={"f": 1},
            )
        )
        assert drawn(found.index.model) == drawing("""
            (x: float) => (y: float)
              y: float = Add(x, x)
        """)
        assert [f.message for f in found.findings] == ["1 model-local functions were inlined: f::Twice"]

    def test_functions_in_functions_and_in_bodies(self) -> None:
        found = loaded(
            model(
                """
                g (float[2] x, bool c) => (float[2] y) {
                  y = If(c) <then_branch = t () => (float[2] u) { u = f.Outer(x) },
                             else_branch = e () => (float[2] v) { v = f.Inner(x) }>
                }
                <domain: "f", opset_import: ["" : 17, "f" : 1]>
                Outer (a) => (b) { m = f.Inner(a)  b = Neg(m) }
                <domain: "f", opset_import: ["" : 17]>
                Inner (a) => (b) { b = Abs(a) }
                """,
                domains={"f": 1},
            )
        )
        assert sorted(n.op_type for n in found.index.nodes) == ["Abs", "Abs", "If", "Neg"]

    def test_attributes_of_the_call_reach_the_nodes(self) -> None:
        found = loaded(
            model(
                """
                g (float[2] x) => (float[2] y) { y = f.Leak<slope = 0.25>(x) }
                <domain: "f", opset_import: ["" : 17]>
                Leak <slope> (a) => (b) { b = LeakyRelu<alpha: float = @slope>(a) }
                """,
                domains={"f": 1},
            )
        )
        assert "LeakyRelu<alpha=0.25>(x)" in drawn(found.index.model)

    def test_a_function_of_an_older_opset_that_means_the_same(self) -> None:
        found = loaded(
            model(
                """
                g (float[2] x) => (float[2] y) { y = f.Twice(x) }
                <domain: "f", opset_import: ["" : 14]>
                Twice (a) => (b) { b = Add(a, a) }
                """,
                domains={"f": 1},
            )
        )
        assert [n.op_type for n in found.index.nodes] == ["Add"]

    def test_a_function_of_an_older_opset_that_means_something_else_is_converted(self) -> None:
        """Squeeze of opset 11 has its axes as an attribute."""
        found = loaded(
            model(
                """
                g (float[1, 2] x) => (float[2] y) { y = f.Flat(x) }
                <domain: "f", opset_import: ["" : 11]>
                Flat (a) => (b) { b = Squeeze<axes = [0]>(a) }
                """,
                domains={"f": 1},
            )
        )
        squeeze = next(n for n in found.index.nodes if n.op_type == "Squeeze")
        assert len(squeeze.inputs) == 2
        assert not squeeze.attributes

    def test_a_function_brings_the_opset_when_the_model_has_none(self) -> None:
        proto = model(
            """
            g (float[2] x) => (float[2] y) { y = f.Twice(x) }
            <domain: "f", opset_import: ["" : 16]>
            Twice (a) => (b) { b = Add(a, a) }
            """,
            domains={"f": 1},
        )
        del proto.opset_import[0]
        assert loaded(proto).index.opset == 16

    def test_weights_survive_inlining_bit_for_bit(self, rng: np.random.Generator) -> None:
        weight = rng.standard_normal((3, 2)).astype(np.float32)
        found = loaded(
            model(
                """
                g (float[1, 3] x) => (float[1, 2] y) { y = f.Product(x, w) }
                <domain: "f", opset_import: ["" : 17]>
                Product (a, b) => (c) { c = MatMul(a, b) }
                """,
                domains={"f": 1},
                weights={"w": weight},
            )
        )
        (tensor,) = found.index.constants.values()
        np.testing.assert_array_equal(tensor.numpy(), weight)

    def test_a_function_that_calls_itself_is_refused(self) -> None:
        proto = model(
            """
            g (float[2] x) => (float[2] y) { y = f.Round(x) }
            <domain: "f", opset_import: ["" : 17, "f" : 1]>
            Round (a) => (b) { b = f.Round(a) }
            """,
            domains={"f": 1},
        )
        with pytest.raises(ModelError, match=r"function"):
            loaded(proto)

    def test_a_function_the_inliner_rejects(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("no schema")

        monkeypatch.setattr(onnx_file.onnx.inliner, "inline_local_functions", fail)
        proto = model(
            """
            g (float[2] x) => (float[2] y) { y = f.Twice(x) }
            <domain: "f", opset_import: ["" : 17]>
            Twice (a) => (b) { b = Add(a, a) }
            """,
            domains={"f": 1},
        )
        with pytest.raises(ModelError, match=r"the model's functions \(f::Twice\) cannot be inlined: no schema"):
            loaded(proto)

    def test_a_function_of_an_opset_that_cannot_be_converted_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(onnx_file.onnx.inliner, "inline_local_functions", lambda proto, **_: proto)
        proto = model(
            """
            g (float[2] x) => (float[2] y) { y = f.Twice(x) }
            <domain: "f", opset_import: ["" : 17]>
            Twice (a) => (b) { b = Add(a, a) }
            """,
            domains={"f": 1},
        )
        with pytest.raises(ModelError) as refused:
            loaded(proto)
        assert str(refused.value) == (
            "function f::Twice uses another opset than the model (17) and cannot be converted to it; "
            "inline it or export the model with one opset"
        )


def sparse(values: list[float], indices: list[int] | list[list[int]], dims: list[int], name: str = "w") -> object:
    return onnx.helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.array(values, np.float32), name),
        onnx.numpy_helper.from_array(np.array(indices, np.int64), f"{name}_indices"),
        dims,
    )


class TestSparse:
    @pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
    def test_a_sparse_initializer_becomes_dense(self, indices: list[int]) -> None:
        proto = model("g (float[1, 2] x) => (float[1, 3] y) { y = MatMul(x, w) }")
        proto.graph.sparse_initializer.append(sparse([2.0, 3.0], indices, [2, 3]))
        found = loaded(proto)
        (tensor,) = found.index.constants.values()
        np.testing.assert_array_equal(tensor.numpy(), [[0, 2, 0], [0, 0, 3]])
        assert [(f.kind, f.message) for f in found.findings] == [
            ("densified", "sparse initializer 'w' is stored dense (24 bytes)")
        ]

    def test_a_sparse_constant_in_a_body_becomes_dense(self) -> None:
        proto = model(
            """
            g (float[3] x, bool c) => (float[3] y) {
              y = If(c) <then_branch = t () => (float[3] u) { u = Identity(x) },
                         else_branch = e () => (float[3] v) { k = Constant<value = float {0}>()  v = Add(x, k) }>
            }
            """
        )
        constant = proto.graph.node[0].attribute[1].g.node[0]
        del constant.attribute[:]
        attribute = constant.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
        attribute.sparse_tensor.CopyFrom(sparse([7.0], [1], [3], ""))
        assert "k: float = Constant<value={0, 7, 0}>()" in drawn(loaded(proto).index.model)

    def test_a_sparse_constant_in_a_function_becomes_dense(self) -> None:
        proto = model(
            """
            g (float[3] x) => (float[3] y) { y = f.Shift(x) }
            <domain: "f", opset_import: ["" : 17]>
            Shift (a) => (b) { k = Constant<value = float {0}>()  b = Add(a, k) }
            """,
            domains={"f": 1},
        )
        constant = proto.functions[0].node[0]
        del constant.attribute[:]
        attribute = constant.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
        attribute.sparse_tensor.CopyFrom(sparse([7.0], [1], [3], ""))
        assert "Constant<value={0, 7, 0}>()" in drawn(loaded(proto).index.model)

    def test_one_that_would_be_too_large_is_refused(self) -> None:
        proto = model("g (float[1, 2] x) => (float[1, 2] y) { y = Relu(x) }")
        proto.graph.sparse_initializer.append(sparse([2.0], [1], [2**20, 2**20]))
        with pytest.raises(ModelError) as refused:
            loaded(proto)
        assert str(refused.value) == (
            "sparse initializer 'w' would take 4,398,046,511,104 bytes when dense, the limit is 1,073,741,824; "
            "store it dense or split it"
        )

    @pytest.mark.parametrize("indices", [[6], [-1], [[0, 3]], [[0, 0, 0]]])
    def test_indices_outside_the_shape_are_refused(self, indices: list[int]) -> None:
        proto = model("g (float[1, 2] x) => (float[1, 3] y) { y = MatMul(x, w) }")
        proto.graph.sparse_initializer.append(sparse([2.0], indices, [2, 3]))
        with pytest.raises(ModelError, match=r"sparse initializer 'w' has indices that do not fit its shape"):
            loaded(proto)


class TestWhatTravelsBeside:
    def training(self, key: str) -> onnx.ModelProto:
        proto = model("g (float[2] x) => (float[2] y) { y = Mul(x, w) }", weights={"w": np.ones(2, np.float32)})
        entry = proto.training_info.add()
        entry.update_binding.add(key=key, value="w_new")
        return proto

    def test_training_info_is_kept_when_its_tensors_are(self) -> None:
        found = loaded(self.training("w"))
        target = onnx.ModelProto()
        assert restore(target, found.training, {"other"}) == []
        assert [b.key for b in target.training_info[0].update_binding] == ["w"]

    def test_training_info_is_named_as_dropped_when_a_tensor_became_narrow(self) -> None:
        found = loaded(self.training("w"))
        target = onnx.ModelProto()
        (finding,) = restore(target, found.training, {"w"})
        assert finding.kind == "dropped"
        assert finding.message == "training_info was dropped: it trains 'w', which is no longer FP32"
        assert not target.training_info

    def test_no_training_info_no_finding(self) -> None:
        assert restore(onnx.ModelProto(), [], {"w"}) == []

    def test_training_info_survives_inlining(self) -> None:
        proto = model(
            """
            g (float[2] x) => (float[2] y) { y = f.Twice(x) }
            <domain: "f", opset_import: ["" : 17]>
            Twice (a) => (b) { b = Add(a, a) }
            """,
            domains={"f": 1},
        )
        proto.training_info.add().update_binding.add(key="w", value="v")
        assert len(loaded(proto).training) == 1


class TestOrder:
    def test_nodes_in_any_order_are_sorted(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { h = Relu(x)  y = Neg(h) }")
        nodes = [*proto.graph.node][::-1]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        assert [n.op_type for n in loaded(proto).index.nodes] == ["Relu", "Neg"]

    def test_a_cycle_is_refused_by_name(self) -> None:
        proto = model("g (float[2] x) => (float[2] y) { a = Add(x, b)  b = Relu(a)  y = Neg(b) }")
        with pytest.raises(ModelError, match=r"the graph has a cycle.*'[ab]'"):
            loaded(proto)
