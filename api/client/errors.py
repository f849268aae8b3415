"""What a caller of the service can run into, in the branches of ``converter.errors``.

RequestRefused      4xx: the request is wrong (exit 2)
JobFailed           the job ran and failed (exit 2 or 3, as its error says)
ServiceFailed       5xx, or an answer that makes no sense (exit 3)
ServiceUnreachable  no answer (exit 4)
NotAuthorised       401, 403 (exit 4)
WaitTimedOut        the wait is over, the job is not (exit 5)
JobCanceled         somebody cancelled the job (exit 6)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from converter.errors import EnvironmentFailure, InputError, NarrowcastError

if TYPE_CHECKING:
    from api.client.records import Job


class RequestRefused(InputError):
    """The service understood and said no; ``problem`` is its document."""

    code = "REQUEST_REFUSED"

    def __init__(self, message: str, status: int = 0, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = dict(problem or {})


class NotAuthorised(RequestRefused):
    """The key is missing, wrong, or may not do this."""

    code = "NOT_AUTHORISED"
    exit_status = 4


class ServiceFailed(EnvironmentFailure):
    """The service answered, but could not do it."""

    code = "SERVICE_FAILED"


class ServiceUnreachable(EnvironmentFailure):
    """Nobody answers at the service's address."""

    code = "SERVICE_UNREACHABLE"
    exit_status = 4


class WaitTimedOut(NarrowcastError):
    """The job is still open; it goes on without us."""

    code = "WAIT_TIMED_OUT"
    exit_status = 5

    def __init__(self, message: str, job: Job | None = None) -> None:
        super().__init__(message)
        self.job = job


class JobCanceled(NarrowcastError):
    """The job was cancelled."""

    code = "JOB_CANCELED"
    exit_status = 6


class JobFailed(NarrowcastError):
    """The job ended without a result; ``job.error`` says why."""

    code = "JOB_FAILED"

    def __init__(self, message: str, exit_status: int = 3) -> None:
        super().__init__(message)
        self.exit_status = exit_status
