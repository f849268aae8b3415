"""The FP32 set under an error budget: pricing, repair and search."""
