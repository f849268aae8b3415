"""Tiny graphs for tests, from ONNX text."""
