"""What can go wrong, by who has to act.

NarrowcastError
    InputError            the caller can fix it: exit 2, HTTP 4xx
        ModelError        the model file or its graph
        BatchError        the sample batch
        OptionError       an option, an override, a policy or tolerance file
    EnvironmentFailure    an operator can fix it: retried, exit 3, HTTP 503
        RunCrashed        the child process died; the message names the node it was in
    InternalError         we must fix it: exit 3, HTTP 500

Exit status and retry follow from the branch and are decided nowhere else.  A message says what happened,
where, the number and its limit, and what to do.
"""

from __future__ import annotations


class NarrowcastError(Exception):
    """Base of every error this project raises on purpose."""

    exit_status = 3
    retryable = False
    code = "INTERNAL"


class InputError(NarrowcastError):
    """The caller gave something that cannot be converted and can change it."""

    exit_status = 2
    code = "INVALID_INPUT"


class ModelError(InputError):
    """The model is missing, unreadable, or outside what ONNX allows."""

    code = "MODEL_PARSE_ERROR"


class BatchError(InputError):
    """The sample batch does not fit the model's inputs."""

    code = "INPUT_MISMATCH"


class OptionError(InputError):
    """An option, override, policy or tolerance is wrong."""

    code = "INVALID_OPTION"


class EnvironmentFailure(NarrowcastError):
    """The machine or a service around us failed; trying again may help."""

    retryable = True
    code = "ENVIRONMENT"


class RunCrashed(EnvironmentFailure):
    """The child process died on a signal; ``node`` is the node it was running."""

    code = "RUNTIME_CRASH"

    def __init__(self, message: str, node: str = "", signal: int = 0) -> None:
        super().__init__(message)
        self.node = node
        self.signal = signal


class InternalError(NarrowcastError):
    """A promise of this program to itself was broken: a bug in narrowcast."""
