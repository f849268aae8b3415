"""Converts a model with another tool; runs in that tool's own environment and imports nothing of ours.

``python peers.py PEER MODEL OUTPUT [BATCH.npz]`` with PEER ``common`` (onnxconverter-common), ``ort`` (ONNX Runtime's
``transformers.float16``) or ``autocast`` (NVIDIA ModelOpt).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx

INLINE_LIMIT = 1_500_000_000


def main() -> None:
    peer, model, output, *batch = sys.argv[1:]
    {"common": common, "ort": ort, "autocast": autocast}[peer](model, output, batch[0] if batch else None)


def size_of(model: str) -> int:
    folder = Path(model).parent
    data = {e.value for t in onnx.load(model, load_external_data=False).graph.initializer
            for e in t.external_data if e.key == "location"}  # fmt: skip
    return Path(model).stat().st_size + sum((folder / name).stat().st_size for name in data)


def save(converted: Any, output: str, large: bool) -> None:
    if large:
        onnx.save(converted, output, save_as_external_data=True, location=Path(output).name + ".data")
    else:
        onnx.save(converted, output)


def common(model: str, output: str, batch: str | None) -> None:
    from onnxconverter_common import float16

    large = size_of(model) > INLINE_LIMIT
    del batch
    loaded = onnx.load(model)
    save(float16.convert_float_to_float16(loaded, keep_io_types=True, disable_shape_infer=large), output, large)


def ort(model: str, output: str, batch: str | None) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    large = size_of(model) > INLINE_LIMIT
    del batch
    loaded = onnx.load(model)
    save(convert_float_to_float16(loaded, keep_io_types=True, disable_shape_infer=large), output, large)


def autocast(model: str, output: str, batch: str | None) -> None:
    from modelopt.onnx.autocast import convert_to_mixed_precision

    converted = convert_to_mixed_precision(
        onnx_path=model, low_precision_type="fp16", keep_io_types=True, calibration_data=batch, providers=["cpu"]
    )
    save(converted, output, size_of(model) > INLINE_LIMIT)


if __name__ == "__main__":
    main()
