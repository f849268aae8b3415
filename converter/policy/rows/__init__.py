"""Rows of the policy table by theme; data only, joined by ``converter.policy.table``."""

from __future__ import annotations

from typing import Final

MICROSOFT: Final = "com.microsoft"
"""Domain of the operators that ONNX Runtime contributes."""
