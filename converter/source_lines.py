"""Where in a program an operator was written: the metadata that exporters leave on ONNX nodes, read with care.

Folders of the machine that exported never survive: files inside packages are named from the package on, others by
their name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

NAME_SCOPES = "pkg.torch.onnx.name_scopes"
STACK_TRACE = "pkg.torch.onnx.stack_trace"

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LEGACY_NAME = re.compile(r"/(?:(.+)/)?([A-Za-z]\w*?)(?:_\d+)?")
"""A node's name as torch's older exporter makes it: ``/encoder/layers.0/fc/MatMul_1``."""


def short_path(path: str) -> str:
    """A file's path without what belongs to one machine: from the package on, else the name alone."""
    inside = re.split(r"[/\\](?:site|dist)-packages[/\\]", path)
    if len(inside) > 1:
        return inside[-1].replace("\\", "/")
    return path if not path.startswith(("/", "\\")) and ":" not in path else re.split(r"[/\\]", path)[-1]


def innermost_line(trace: str) -> str:
    """``file.py:12`` of the innermost frame that is neither PyTorch's own nor generated; empty without one."""
    frames = [(short_path(path), line) for path, line in _FRAME.findall(trace) if "<eval_with_key>" not in path]
    own = [frame for frame in frames if not frame[0].startswith("torch/")] or frames
    return f"{own[-1][0]}:{own[-1][1]}" if own else ""


def module_of(metadata: Mapping[str, str], name: str, op_type: str) -> str:
    """The path of the PyTorch module a node belongs to; empty when nothing tells it or it is the whole model."""
    scopes = metadata.get(NAME_SCOPES)
    if scopes is not None:
        found = _listed(scopes)
        return found[-2] if len(found) > 1 else ""
    legacy = _LEGACY_NAME.fullmatch(name)
    if legacy and legacy[1] and legacy[2] == op_type:
        return legacy[1].replace("/", ".")
    return ""


def _listed(text: str) -> list[str]:
    """A list of strings as Python writes it; empty when the text is none."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return [str(part) for part in found] if isinstance(found, list) else []
