"""From option words and files to a request, with every refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from converter.compare.tolerances import PRESETS
from converter.errors import OptionError
from converter.request import emulation, keep_patterns, policy_file, request_from_options
from converter.types import ConversionRequest, EmulationProfile, PolicyOverride


class TestOptions:
    def test_nothing_given_is_the_default_request(self) -> None:
        assert request_from_options({}) == ConversionRequest()

    def test_everything_given(self) -> None:
        found = request_from_options({
            "to": "bf16", "io_types": "narrow", "overflow": "widen", "optimise": "speed", "max_rel_l2": 0.1,
            "min_sqnr_db": 30.0, "target": "any", "provider": "none", "search": True, "repair": False, "validate": True,
            "metrics": "all", "seed": 7, "headroom": 3.0, "dynamic": ["x:0"], "tolerance": "loose", "emulate": "ascend",
            "keep_fp32": ["enc*"], "policy": None,
        })  # fmt: skip
        assert found == ConversionRequest(
            to="bf16", io_types="narrow", overflow="widen", optimise="speed", max_rel_l2=0.1, min_sqnr_db=30.0,
            search=True, repair=False, metrics="all",
             seed=7, headroom=3.0, dynamic=("x:0",), tolerance=PRESETS["loose"],
            profile=found.profile, overrides=(PolicyOverride(node="enc*", origin="--keep-fp32 'enc*'"),),
        )  # fmt: skip
        assert found.profile.overflow == "saturate"

    def test_none_means_not_given(self) -> None:
        assert request_from_options({"seed": None, "metrics": None}) == request_from_options({})


class TestPatterns:
    def test_names_and_types(self) -> None:
        assert keep_patterns(["enc*", "op:Softmax"]) == (
            PolicyOverride(node="enc*", origin="--keep-fp32 'enc*'"),
            PolicyOverride(op_type="Softmax", origin="--keep-fp32 'op:Softmax'"),
        )


def policy(tmp_path: Path, content: Any, to: str = "fp16") -> tuple[PolicyOverride, ...]:
    path = tmp_path / "p.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return policy_file(str(path), to)


class TestPolicyFiles:
    def test_none(self) -> None:
        assert policy_file(None, "fp16") == ()

    @pytest.mark.parametrize(
        ("word", "chosen"), [("fp32", "fp32"), ("narrow", "bf16"), ("bf16", "bf16"), ("fp16", "bf16"), (None, "fp32")]
    )
    def test_rules(self, tmp_path: Path, word: str | None, chosen: str) -> None:
        rule = {"node": "a*", "op_type": "MatMul", "value": "v", "inputs_from": "Relu", "feeds": "Add", "reason": "why"}
        (found,) = policy(tmp_path, {"rules": [rule | ({"format": word} if word else {})]}, "bf16")
        assert found == PolicyOverride(chosen, "a*", "v", "MatMul", "Relu", "Add", "policy file 'p.json', rule 0")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "is no JSON: "),
            ([], "must hold an object with a list 'rules'"),
            ({}, "must hold an object with a list 'rules'"),
            ({"rules": {}}, "must hold an object with a list 'rules'"),
            ({"rules": ["a"]}, "policy file 'p.json', rule 0: a rule is an object with format, node, value, op_type, "
             "inputs_from, feeds"),
            ({"rules": [{"node": "a"}, {"nodes": "b"}]}, "policy file 'p.json', rule 1: unknown key 'nodes'; known are "
             "format, node, value, op_type, inputs_from, feeds, reason"),
            ({"rules": [{"node": "a", "format": "fp8"}]}, "policy file 'p.json',"
             " rule 0: format is 'fp8'; it takes fp32, "
             "fp16, bf16, narrow"),
            ({"rules": [{"format": "fp32", "reason": "all"}]}, "policy file 'p.json',"
             " rule 0: it matches nothing; give at "
             "least one of node, value, op_type, inputs_from, feeds"),
        ],
    )  # fmt: skip
    def test_refusals(self, tmp_path: Path, content: Any, message: str) -> None:
        with pytest.raises(OptionError) as refused:
            policy(tmp_path, content)
        assert message in str(refused.value)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"policy file '.*none.json' cannot be read: No such file or directory"):
            policy_file(str(tmp_path / "none.json"), "fp16")


class TestEmulation:
    def test_names(self) -> None:
        assert emulation(None) == EmulationProfile()
        assert emulation("ieee") == EmulationProfile()
        assert emulation("ascend+narrow-accumulate").narrow_accumulate

    def test_an_unknown_name(self) -> None:
        with pytest.raises(OptionError, match=r"unknown emulation profile 'gpu'"):
            emulation("gpu")

    def test_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "chip.json"
        path.write_text('{"overflow": "saturate"}')
        assert emulation(str(path)) == EmulationProfile("chip", overflow="saturate")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "is no JSON: "),
            ("[]", "has an unknown key '?'; known are name, overflow, flush_subnormals, narrow_accumulate"),
            ('{"rounding": "up"}', "has an unknown key 'rounding'; known are"),
            ('{"overflow": "wrap"}', "overflow is 'wrap'; it takes inf or saturate"),
            ('{"flush_subnormals": "no"}', 'flush_subnormals is "no"; it takes true or false'),
            ('{"narrow_accumulate": 1}', "narrow_accumulate is 1; it takes true or false"),
            ('{"name": 5}', "name is 5; it takes a text"),
        ],
    )
    def test_refusals(self, tmp_path: Path, content: str, message: str) -> None:
        path = tmp_path / "chip.json"
        path.write_text(content)
        with pytest.raises(OptionError) as refused:
            emulation(str(path))
        assert message in str(refused.value)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"emulation profile '.*none.json' cannot be read: No such file"):
            emulation(str(tmp_path / "none.json"))
