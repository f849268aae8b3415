"""The Python client: ``Client`` and ``AsyncClient``, the same methods in two manners.

Needs nothing of the service but its address: ``pip install 'narrowcast[client]'``.
"""

from api.client.asynchronous import AsyncClient
from api.client.errors import (
    JobCanceled,
    JobFailed,
    NotAuthorised,
    RequestRefused,
    ServiceFailed,
    ServiceUnreachable,
    WaitTimedOut,
)
from api.client.records import Artifact, Event, Job, JobPage
from api.client.synchronous import Client

__all__ = [
    "Artifact",
    "AsyncClient",
    "Client",
    "Event",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobPage",
    "NotAuthorised",
    "RequestRefused",
    "ServiceFailed",
    "ServiceUnreachable",
    "WaitTimedOut",
]
