"""The report the fake engine hands out: a real one of a real conversion, made anew when the engine has changed.

So a new key of the schema is in it at once, and no file has to be kept in step by hand.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def template() -> Path:
    """A file with the report of a one-layer model, shared by all tests of this state of the engine."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "converter").rglob("*.py")):
        digest.update(path.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"narrowcast-fake-report-{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        written = kept.with_suffix(f".{id(kept)}")
        written.write_text(json.dumps(_real_report()))
        written.replace(kept)
    return kept


def _real_report() -> dict[str, object]:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from converter import convert
    from converter.report import report_object

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "dense")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(model, folder / "model.onnx")
        np.savez(folder / "batch.npz", x=np.ones((2, 4), np.float32))
        report = report_object(convert(str(folder / "model.onnx"), [str(folder / "batch.npz")]).report)
    layers = report["layers"]
    return {**report, "layers": layers[:1], "outputs": [], "decisions": [], "clamps": [], "timings": {}}
