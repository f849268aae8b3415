"""The rules that keep nodes FP32: one file each, refusals carry the value, the number and the limit."""
