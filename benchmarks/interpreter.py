"""What the interpreter costs beside one plain optimised inference, for each real model.

``python -m benchmarks.interpreter [NAME ...]``.  Every figure is a ratio to ONNX Runtime's own run of the whole model
with all optimisations and as many threads, measured in turn with ours so that both see the same machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.real.models import MODELS, RealModel

ROUNDS = 7
THREADS = 2


def plain(model: RealModel) -> float:
    """Seconds of one optimised run of the whole model, in a process of its own."""
    return float(_child("plain", model.name)["seconds"])


def _child(what: str, name: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.interpreter", "--child", what, name], capture_output=True, check=True
    )
    return dict(json.loads(done.stdout.decode().splitlines()[-1]))


def _best(action: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def _plain_child(model: RealModel) -> dict[str, float]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(model.file), options, providers=["CPUExecutionProvider"])
    assert model.file is not None
    feeds = model.batches(model.file)[0]
    session.run(None, feeds)
    return {"seconds": _best(lambda: session.run(None, feeds))}


def _ours_child(model: RealModel) -> dict[str, float]:
    assert model.file is not None
    feeds = model.batches(model.file)[0]  # before the pool is shared: it makes ordinary sessions
    from converter.compare.run import compare
    from converter.policy.context import Context
    from converter.policy.decide import decide
    from converter.ranges.batches import Batch
    from converter.ranges.constants import measure_constant, survey_constants
    from converter.ranges.observe import observe
    from converter.run import catalog
    from converter.runtime.formatting import declared_formats, planned_formats
    from converter.runtime.interpreter import Interpreter
    from converter.runtime.session import share_thread_pool
    from converter.source.onnx_file import load
    from converter.types import ConversionRequest

    threads = share_thread_pool(THREADS)
    loaded = load(model.file, catalog())
    index = loaded.index
    interpreter = Interpreter(index, threads)
    start = time.perf_counter()
    ranges = observe(interpreter, [Batch("one", feeds)])
    cold = time.perf_counter() - start
    spec = planned_formats(
        index, decide(Context(index, ConversionRequest(), ranges, measure_constant, survey_constants))
    )
    reference = declared_formats(index)
    interpreter.run(feeds, [reference, spec])
    return {
        "cold": cold,
        "one_stream": _best(lambda: interpreter.run(feeds, [reference])),
        "two_streams": _best(lambda: interpreter.run(feeds, [reference, spec])),
        "observe": _best(lambda: observe(interpreter, [Batch("one", feeds)])),
        "core": _best(lambda: compare(interpreter, spec, [feeds], local=False)),
        "local": _best(lambda: compare(interpreter, spec, [feeds])),
    }


COLUMNS = ("one_stream", "two_streams", "observe", "core", "local", "cold")


def main() -> None:
    if "--child" in sys.argv:
        what, name = sys.argv[-2:]
        model = next(m for m in MODELS if m.name == name)
        print(json.dumps(_plain_child(model) if what == "plain" else _ours_child(model)))
        return
    chosen = [m for m in MODELS if not sys.argv[1:] or m.name in sys.argv[1:]]
    print(f"{'model':22}{'plain ms':>10}" + "".join(f"{c:>13}" for c in COLUMNS))
    for model in chosen:
        if model.file is None:
            continue
        before = plain(model)
        ours = _child("ours", model.name)
        base = min(before, plain(model))
        print(f"{model.name:22}{1e3 * base:10.2f}" + "".join(f"{ours[c] / base:12.1f}x" for c in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
