"""Modules and lines out of exporters' metadata; folders of the exporting machine never survive."""

from __future__ import annotations

import pytest

from converter.source_lines import NAME_SCOPES, innermost_line, module_of, short_path


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/me/.venv/lib/python3.11/site-packages/transformers/models/bert.py", "transformers/models/bert.py"),
        ("/usr/lib/python3/dist-packages/torch/nn/modules/conv.py", "torch/nn/modules/conv.py"),
        ("/home/me/secret/model.py", "model.py"),
        (r"C:\Users\me\model.py", "model.py"),
        (r"C:\Python\Lib\site-packages\timm\layers.py", "timm/layers.py"),
        ("transformers/models/bert.py", "transformers/models/bert.py"),
        ("model.py", "model.py"),
    ],
)
def test_short_paths(path: str, short: str) -> None:
    assert short_path(path) == short
    assert short_path(short) == short


def test_the_innermost_line_is_the_programs_own() -> None:
    trace = (
        'File "/a/run.py", line 3, in forward\n    y = self.net(x)\n'
        '  File "/a/net.py", line 9, in forward\n    return self.conv(x)\n'
        '  File "/a/site-packages/torch/nn/modules/conv.py", line 565, in forward\n    return F.conv2d(...)\n'
        '  File "<eval_with_key>.12", line 13, in forward'
    )
    assert innermost_line(trace) == "net.py:9"
    inside = 'File "/a/site-packages/torch/nn/modules/conv.py", line 5, in f'
    assert innermost_line(inside) == "torch/nn/modules/conv.py:5"
    assert innermost_line("") == ""


@pytest.mark.parametrize(
    ("metadata", "name", "op_type", "module"),
    [
        ({NAME_SCOPES: "['', 'encoder', 'encoder.fc', 'linear']"}, "node_linear", "Gemm", "encoder.fc"),
        ({NAME_SCOPES: "['', 'add']"}, "node_add", "Add", ""),
        ({NAME_SCOPES: "['linear']"}, "n", "Gemm", ""),
        ({NAME_SCOPES: "not a list"}, "n", "Gemm", ""),
        ({NAME_SCOPES: "{}"}, "n", "Gemm", ""),
        ({}, "/encoder/layers.0/fc/MatMul_1", "MatMul", "encoder.layers.0.fc"),
        ({}, "/Conv", "Conv", ""),
        ({}, "/a/b/Something", "Conv", ""),
        ({}, "conv1", "Conv", ""),
    ],
)
def test_modules(metadata: dict[str, str], name: str, op_type: str, module: str) -> None:
    assert module_of(metadata, name, op_type) == module
