"""Presets, tolerance files with every refusal, and the limits an output gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from converter.compare.tolerances import PRESETS, allowed_for, named_tolerance, parse_tolerance
from converter.errors import OptionError
from converter.types import ConversionRequest, OutputTolerance, Tolerance


class TestNames:
    @pytest.mark.parametrize("to", ["fp16", "bf16"])
    def test_the_formats_default(self, to: str) -> None:
        assert named_tolerance(None, to) is PRESETS[f"{to}-default"]

    @pytest.mark.parametrize("name", PRESETS)
    def test_presets(self, name: str) -> None:
        found = named_tolerance(name, "fp16")
        assert found.name == name
        assert 0 < found.floor < found.ceiling < 1

    def test_presets_are_ordered(self) -> None:
        factors = [PRESETS[n].factor for n in ("strict", "fp16-default", "loose")]
        assert factors == sorted(factors)

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "limits.json"
        path.write_text(json.dumps({"preset": "strict", "max_rel_l2": 0.01}))
        found = named_tolerance(str(path), "fp16")
        assert (found.name, found.factor, found.default.max_rel_l2) == ("limits.json", 3.0, 0.01)

    def test_neither_a_preset_nor_a_file(self) -> None:
        with pytest.raises(OptionError) as refused:
            named_tolerance("tight", "fp16")
        assert str(refused.value) == (
            "tolerance 'tight' is neither a preset (fp16-default, bf16-default, strict, loose) nor a file"
        )

    @pytest.mark.parametrize("content", [b"{", b"\xff\xfe"], ids=["cut", "no text"])
    def test_a_file_that_is_no_json(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "limits.json"
        path.write_bytes(content)
        with pytest.raises(OptionError, match=r"tolerance file '.*limits.json' is no JSON: "):
            named_tolerance(str(path), "fp16")


class TestFiles:
    def test_everything_at_once(self) -> None:
        found = parse_tolerance(
            {"factor": 2, "floor": 1e-4, "ceiling": 1e-1, "min_sqnr_db": 40, "outputs": {"y*": {"max_abs": 0.5}}},
            "f.json", "bf16",
        )  # fmt: skip
        assert found == Tolerance(
            "f.json", 2.0, 1e-4, 1e-1, OutputTolerance(min_sqnr_db=40.0), (("y*", OutputTolerance(max_abs=0.5)),)
        )

    def test_an_empty_file_is_the_formats_default(self) -> None:
        found = parse_tolerance({}, "f.json", "bf16")
        assert (found.factor, found.floor) == (PRESETS["bf16-default"].factor, PRESETS["bf16-default"].floor)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ([], "tolerance file 'f.json' must hold one JSON object"),
            ({"max_l2": 1}, "tolerance file 'f.json' has an unknown key 'max_l2'; known are preset, factor, floor, "
             "ceiling, outputs, max_rel_l2, min_sqnr_db, max_abs, min_top1_agreement"),
            ({"preset": "tight"}, "tolerance file 'f.json' names preset 'tight'; known are fp16-default, bf16-default, "
             "strict, loose"),
            ({"outputs": []}, "tolerance file 'f.json': 'outputs' must map output name patterns to objects"),
            ({"outputs": {"y": 1}}, "tolerance file 'f.json': 'outputs' must map output name patterns to objects"),
            ({"outputs": {"y": {"max": 1}}}, "tolerance file 'f.json' has an unknown limit 'max'"),
            ({"max_abs": -1}, "tolerance file 'f.json': 'max_abs' must be a number of at least 0 and is -1"),
            ({"max_abs": "1"}, "tolerance file 'f.json': 'max_abs' must be a number of at least 0 and is '1'"),
            ({"factor": True}, "tolerance file 'f.json': 'factor' must be a number of at least 0 and is True"),
            ({"outputs": {"y": {"max_abs": None}}},
             "tolerance file 'f.json': 'max_abs' must be a number of at least 0 and is None"),
        ],
    )  # fmt: skip
    def test_refusals(self, content: Any, message: str) -> None:
        with pytest.raises(OptionError) as refused:
            parse_tolerance(content, "f.json", "fp16")
        assert str(refused.value) == message

    @pytest.mark.parametrize("limit", [float("nan"), float("inf")])
    def test_limits_that_are_no_numbers(self, limit: float) -> None:
        with pytest.raises(OptionError, match=r"'max_abs' must be a number of at least 0 and is (nan|inf)"):
            parse_tolerance({"max_abs": limit}, "f.json", "fp16")

    def test_a_preset_that_is_no_word(self) -> None:
        with pytest.raises(OptionError, match=r"names preset '\['loose'\]'"):
            parse_tolerance({"preset": ["loose"]}, "f.json", "fp16")


class TestLimits:
    TOLERANCE = Tolerance("t", factor=6.0, floor=1e-3, ceiling=2e-2)

    def allowed(
        self, expected: float | None, request: ConversionRequest | None = None, **fields: Any
    ) -> OutputTolerance:
        tolerance = Tolerance("t", 6.0, 1e-3, 2e-2, **fields)
        return allowed_for("y1", expected, tolerance, request or ConversionRequest())

    @pytest.mark.parametrize(("expected", "limit"), [(5e-4, 3e-3), (1e-9, 1e-3), (1.0, 2e-2), (None, None)])
    def test_the_rounding_models(self, expected: float | None, limit: float | None) -> None:
        found = self.allowed(expected).max_rel_l2
        assert found == (None if limit is None else pytest.approx(limit))

    def test_the_command_line_before_the_model(self) -> None:
        found = self.allowed(5e-4, ConversionRequest(max_rel_l2=0.5, min_sqnr_db=20.0))
        assert (found.max_rel_l2, found.min_sqnr_db) == (0.5, 20.0)

    def test_the_file_before_the_command_line(self) -> None:
        request = ConversionRequest(max_rel_l2=0.5, min_sqnr_db=20.0)
        default = OutputTolerance(max_rel_l2=0.1, min_sqnr_db=30.0)
        found = self.allowed(5e-4, request, default=default)
        assert (found.max_rel_l2, found.min_sqnr_db) == (0.1, 30.0)

    def test_patterns_add_to_the_default_and_the_last_wins(self) -> None:
        outputs = (
            ("y*", OutputTolerance(max_abs=1.0)),
            ("y1", OutputTolerance(max_abs=2.0)),
            ("z", OutputTolerance(0.3)),
        )
        found = self.allowed(None, default=OutputTolerance(min_sqnr_db=10.0), outputs=outputs)
        assert found == OutputTolerance(max_abs=2.0, min_sqnr_db=10.0)

    def test_zero_is_a_limit(self) -> None:
        assert self.allowed(5e-4, ConversionRequest(max_rel_l2=0.0)).max_rel_l2 == 0.0
