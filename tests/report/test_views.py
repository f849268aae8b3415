"""The registry of views, and what they may import."""

from __future__ import annotations

import copy
import random
import subprocess
import sys

import pytest

from converter.errors import OptionError
from converter.report import VIEWS, dump, view
from converter.report.conform import departure, report_schema
from converter.report.terminal_view import render
from tests.report.test_conform import JUNK, SMALL, SPOTS


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("example", ["passing", "failing", "hostile", "empty"])
def test_every_view_takes_every_report(name, example, request):
    report = request.getfixturevalue(example)
    before = dump(report)
    assert view(report, name) == view(report, name)
    assert dump(report) == before


@pytest.mark.parametrize("seed", range(150))
def test_whatever_conforms_to_the_schema_can_be_viewed(seed):
    source, content = random.Random(seed), copy.deepcopy(SMALL)
    for *where, last in sorted(source.sample(SPOTS, 40), key=len, reverse=True):
        place = content
        for key in where:
            place = place[key]
        kept, place[last] = place[last], source.choice([None, *JUNK])
        if departure(content, report_schema()):
            place[last] = kept
    for name in VIEWS:
        assert view(content, name)
    assert render(content)


def test_refuses_an_unknown_view(passing):
    expected = "there is no report format 'pdf'; choose one of csv, html, json, junit, markdown, model-explorer"
    with pytest.raises(OptionError, match=expected):
        view(passing, "pdf")


def test_views_need_no_model_library():
    script = "import sys, converter.report, converter.report.terminal_view; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxruntime", "torch"} & set(loaded)
