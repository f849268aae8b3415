"""Comparing the mixed run with FP32, layer by layer, and judging the outputs."""
