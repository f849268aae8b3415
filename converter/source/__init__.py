"""From a file to a model whose every value has a type."""
