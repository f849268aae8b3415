"""The worker side of the service: job contract, queue, storage and the isolated runner."""
