"""The registry of views, and what they may import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from converter.errors import OptionError
from converter.report import VIEWS, dump, view


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("example", ["passing", "failing", "hostile", "empty"])
def test_every_view_takes_every_report(name, example, request):
    report = request.getfixturevalue(example)
    before = dump(report)
    assert view(report, name) == view(report, name)
    assert dump(report) == before


def test_refuses_an_unknown_view(passing):
    expected = "there is no report format 'pdf'; choose one of csv, html, json, junit, markdown, model-explorer"
    with pytest.raises(OptionError, match=expected):
        view(passing, "pdf")


def test_views_need_no_model_library():
    script = "import sys, converter.report, converter.report.terminal_view; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxruntime", "torch"} & set(loaded)
