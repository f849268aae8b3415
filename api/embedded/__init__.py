"""The default without any configuration: one command that runs everything and leaves nothing behind."""
