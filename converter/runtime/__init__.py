"""Running models: node by node on the CPU, and whole on a real provider."""
