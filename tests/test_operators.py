"""Operator schemas as plain records."""

from __future__ import annotations

import onnx
import pytest

from converter.operators import OperatorCatalog, OperatorSchema, Port, canonical_domain, from_onnx, standard_operators
from tests.models.build import catalog


class TestCatalog:
    def test_the_version_in_force(self) -> None:
        found = OperatorCatalog()
        assert [schema.since_version for v in (7, 12, 13, 14) if (schema := found.find("", "Relu", v))] == [
            6,
            6,
            13,
            14,
        ]

    def test_both_names_of_the_standard_domain(self) -> None:
        assert catalog().find("ai.onnx", "Relu", 17) is catalog().find("", "Relu", 17)
        assert canonical_domain("ai.onnx") == ""
        assert canonical_domain("com.microsoft") == "com.microsoft"

    @pytest.mark.parametrize(("domain", "op_type", "version"), [("", "Nothing", 17), ("", "Gelu", 17), ("none", "Op",
     1),
                                                               ("", "Relu", 0)])  # fmt: skip
    def test_nobody_knows(self, domain: str, op_type: str, version: int) -> None:
        assert catalog().find(domain, op_type, version) is None

    def test_contributed_schemas_of_several_versions(self) -> None:
        records = [OperatorSchema("own", "Op", since, (), (), {}) for since in (1, 3)]
        found = OperatorCatalog(records)
        assert found.find("own", "Op", 2) is records[0]
        assert found.find("own", "Op", 5) is records[1]
        assert found.find("own", "Op", 0) is None


class TestSchemas:
    def test_what_is_copied(self) -> None:
        found = from_onnx(onnx.defs.get_schema("Clip", 13))
        assert found.inputs == (Port("input", "T"), Port("min", "T", optional=True), Port("max", "T", optional=True))
        assert found.outputs == (Port("output", "T"),)
        assert found.input_names == ("input", "min", "max")
        assert found.allows("T", "tensor(float16)")
        assert not found.allows("T", "tensor(string)")
        assert found.has_function
        assert from_onnx(onnx.defs.get_schema("LeakyRelu", 16)).defaults == {"alpha": pytest.approx(0.01)}

    def test_a_fixed_type_allows_itself(self) -> None:
        found = from_onnx(onnx.defs.get_schema("Shape", 13))
        port = found.output_port(0)
        assert port is not None
        assert found.allows(port.type_var, "tensor(int64)") or found.allows("tensor(int64)", "tensor(int64)")
        assert not found.allows("tensor(int64)", "tensor(float)")

    def test_variadic_ports_repeat(self) -> None:
        found = from_onnx(onnx.defs.get_schema("Concat", 13))
        assert found.input_port(7) == found.inputs[0]
        assert found.output_port(1) is None

    def test_deprecated(self) -> None:
        assert from_onnx(onnx.defs.get_schema("Upsample", 10)).deprecated


def test_standard_operators_have_their_versions_oldest_first() -> None:
    found = standard_operators()
    assert found["Relu"] == (1, 6, 13, 14)
    assert "FusedMatMul" not in found
    assert list(found) == sorted(found)
