"""The engine of narrowcast: FP32 models in, mixed FP16/BF16 models and a per-layer error report out.

Importing this package is cheap: nothing heavy (onnx, onnxruntime, torch) is loaded until a function runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converter.inspection import inspect as inspect
    from converter.pipeline import convert as convert
    from converter.validation import validate as validate

__version__ = "0.1.0"
__all__ = ["__version__", "convert", "inspect", "validate"]

_HOMES = {"convert": "pipeline", "inspect": "inspection", "validate": "validation"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"converter.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
