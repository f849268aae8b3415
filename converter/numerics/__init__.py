"""Rounding, error metrics, value ranges and the rounding model: plain functions over NumPy arrays.

Imports ``formats``, ``types``, ``errors``, NumPy and ml_dtypes only: no graph, no runtime, no torch.
"""
