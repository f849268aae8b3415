"""The same network at every operator set, flat, in bodies and in functions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx.defs
import pytest
from onnx import ModelProto

from tests.conformance.emulation import Runnable
from tests.conformance.examine import examine, narrow_nodes
from tests.models.build import model

OPSETS = (7, 9, 11, 13, 15, 17, 18, 20, 21, 22, 23)
BF16_FROM = 13
"""The first opset with BF16 in MatMul, Relu, Add and Cast."""
NETWORK = "h = MatMul(x, w) a = Relu(h) b = Sub(a, x) s = Softmax <axis = 1> (b) y = Mul(s, b)"
LAYOUTS = {
    "flat": f"g (float[2,4] x) => (float[2,4] y) {{ {NETWORK} }}",
    "branches": "g (float[2,4] x, bool flag) => (float[2,4] out) { out = If(flag) <then_branch = "
    f"t () => (float[2,4] y) {{ {NETWORK} }}, else_branch = e () => (float[2,4] y) {{ {NETWORK} }}> }}",
    "loop": "g (float[2,4] x0, int64 trips, bool go) => (float[2,4] last) { last = Loop(trips, go, x0) <body = "
    "b (int64 step, bool before, float[2,4] x) => (bool after, float[2,4] y) "
    f"{{ after = Identity(before) {NETWORK} }}> }}",
    "function": "g (float[2,4] x0) => (float[2,4] y0) { y0 = local.F(x0, w) } "
    f'<domain: "local", opset_import: ["": 1]> F (x, w) => (y) {{ {NETWORK} }}',
}
FEEDS = {
    "x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4),
    "x0": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4),
    "flag": np.array(True),
    "go": np.array(True),
    "trips": np.array(2),
}


def network(layout: str, opset: int) -> tuple[ModelProto, dict[str, Any]]:
    weights = np.random.default_rng(5).standard_normal((4, 4)).astype(np.float32)
    made = model(LAYOUTS[layout], opset, {"w": weights}, {"local": 1})
    for function in made.functions:
        function.opset_import[0].version = opset
    made.ir_version = max(made.ir_version, 8) if made.functions else made.ir_version
    return made, {v.name: FEEDS[v.name] for v in made.graph.input}


@cache
def newest() -> int:
    """The newest opset of the installed onnx that ONNX Runtime runs."""
    for opset in range(onnx.defs.onnx_opset_version(), OPSETS[-1], -1):
        made, feeds = network("flat", opset)
        try:
            Runnable(made).run(feeds)
        except Exception:
            continue
        return opset
    return OPSETS[-1]


@pytest.mark.parametrize("to", ["fp16", "bf16"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("opset", [*OPSETS, newest()])
def test_it_converts(opset: int, layout: str, to: str) -> None:
    made, feeds = network(layout, opset)
    found = examine(made, feeds, to)
    assert not found.problems, "\n".join([*found.problems, found.text()])
    assert found.report.verdict.status == "pass", found.report.verdict.reasons
    wanted = {"MatMul"} if layout == "loop" else {"MatMul", "Relu", "Sub"}  # a Loop's state stays FP32
    assert wanted <= set(narrow_nodes(found.made)), found.text()
    written = next(o.version for o in found.made.opset_import if o.domain == "")
    raised = [f for f in found.report.findings if f.kind == "raised-opset"]
    if to == "fp16":
        assert written == opset
    assert bool(raised) == (written != opset)
    assert written >= opset
    assert to == "fp16" or written >= BF16_FROM


def test_newer_than_the_list() -> None:
    assert newest() > OPSETS[-1]
