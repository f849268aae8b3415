"""The service: REST API, client and the command-line entry point."""
