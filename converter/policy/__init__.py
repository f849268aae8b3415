"""Whether an operator should be narrow: the table of operators and, beside it, the rules that read ranges."""
