"""The tree of modules: rows add up what lies below them, and the worst block is found by going down."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from converter.report import view
from converter.report.modules import module_rows
from converter.types import LayerComparison
from tests.report import examples


def layer(module: str, local: float | None, accumulated: float = 1e-3, **changes: Any) -> LayerComparison:
    base = next(row for row in examples.passing().layers if row.local is not None and row.accumulated is not None)
    assert base.local is not None
    assert base.accumulated is not None
    figures = replace(base.accumulated, rel_l2_error=accumulated, saturated=changes.pop("saturated", 0), flushed=0,
                      misplaced_nonfinite=changes.pop("misplaced", 0))  # fmt: skip
    alone = replace(base.local, rel_l2_error=local, saturated=figures.saturated)
    return replace(base, module=module, local=alone, accumulated=figures, node=changes.pop("node", module or "n"),
                   status="as expected", format=changes.pop("format", "fp16"))  # fmt: skip


def test_a_model_without_modules_has_no_tree() -> None:
    assert module_rows([layer("", 1e-3)]) == []


def test_rows_sum_up_squares_and_counts() -> None:
    rows = module_rows([layer("a.x", 3e-3), layer("a.y", 4e-3, format="fp32"), layer("b", 0.0), layer("", 0.0)])
    by_name = {row["module"]: row for row in rows}
    assert [row["module"] for row in rows] == ["", "a", "a.x", "a.y", "b"]
    assert [row["depth"] for row in rows] == [0, 1, 2, 2, 1]
    assert by_name["a"]["local_rel_l2"] == pytest.approx(5e-3)
    assert by_name["a"]["share"] == pytest.approx(1.0)
    assert by_name["a.x"]["share"] == pytest.approx(9 / 25)
    assert (by_name[""]["layers"], by_name["a"]["wide_layers"], by_name["b"]["layers"]) == (4, 1, 1)


def test_containers_of_one_module_have_no_row() -> None:
    rows = module_rows([layer("encoder.layer.0.fc", 1e-3), layer("encoder.layer.1.fc", 1e-3)])
    assert [row["module"] for row in rows] == ["", "encoder.layer", "encoder.layer.0.fc", "encoder.layer.1.fc"]


def test_the_worst_block_is_the_deepest_that_dominates() -> None:
    rows = module_rows([layer("a.x", 1e-3), layer("a.y", 9e-3), layer("b.x", 1e-3), layer("b.y", 1e-3)])
    assert [row["module"] for row in rows if row["worst"]] == ["a.y"]
    even = module_rows([layer("a.x", 1e-3), layer("a.y", 1e-3), layer("a.z", 1e-3), layer("b", 1e-3)])
    assert [row["module"] for row in even if row["worst"]] == ["a"]
    exact = module_rows([layer("a", 0.0), layer("b", 0.0)])
    assert not any(row["worst"] for row in exact)


def test_limited_masks_are_counted_and_do_not_count_as_rounding() -> None:
    rows = module_rows([layer("a", 1.0, saturated=12), layer("b", 1e-3)])
    by_name = {row["module"]: row for row in rows}
    assert by_name["a"]["saturated"] == 12
    assert by_name["a"]["share"] == 0.0
    assert by_name["b"]["worst"]


def test_the_worst_layer_and_non_finite_errors() -> None:
    rows = module_rows([layer("a", 1e-3, 2e-3, node="first"), layer("a", 1e-3, 5e-3, node="second", misplaced=1)])
    assert (rows[0]["worst_rel_l2"], rows[0]["worst_layer"], rows[0]["misplaced_nonfinite"]) == (5e-3, "second", 1)
    lost = module_rows([replace(layer("a", 1e-3), accumulated=replace(layer("a", 0.0).accumulated, rel_l2_error=None))])  # type: ignore[type-var]
    assert lost[0]["worst_rel_l2"] is None
    assert lost[0]["worst_layer"] == "a"
    bare = module_rows([replace(layer("a", None), accumulated=None)])
    assert (bare[0]["local_rel_l2"], bare[0]["share"]) == (0.0, 0.0)
    assert math.isfinite(bare[0]["share"])


def test_views_show_the_tree(passing: dict[str, Any]) -> None:
    page = view(passing, "html").decode()
    assert 'id="modules"' in page
    assert "worst block" in page
    assert "**Modules by rounding error**" in view(passing, "markdown").decode()
