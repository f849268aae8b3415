"""PyTorch programs in and out; these tests run where torch is installed."""
