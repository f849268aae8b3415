"""What the sample batches showed: observing values, merging what was seen, and shares read from it."""
