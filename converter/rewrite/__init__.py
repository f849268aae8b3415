"""The rewrite: obeys the plan, decides nothing, and leaves a valid graph."""
