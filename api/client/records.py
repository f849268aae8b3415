"""Answers of the service as records; ``raw`` is the whole JSON for what has no field here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from api.client.errors import JobCanceled, JobFailed

TERMINAL: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "EXPIRED"})


@dataclass(frozen=True, slots=True)
class Job:
    """A conversion: ``state`` says whether it ran, ``verdict`` what its numbers are worth."""

    id: str
    name: str
    state: str
    verdict: str | None
    stage: str
    done: int
    total: int
    error: Mapping[str, Any] | None
    summary: Mapping[str, Any] | None
    labels: Mapping[str, str]
    created_at: str
    finished_at: str | None
    run_seconds: float | None
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Job:
        progress = raw["progress"]
        return cls(
            raw["id"], raw["name"], raw["state"], raw["verdict"], progress["stage"], progress["done"],
            progress["total"], raw["error"], raw["summary"], raw["labels"], raw["created_at"], raw["finished_at"],
            raw["run_seconds"], raw,
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def exit_status(self) -> int:
        """What a command about this job ends with: 0 good, 1 verdict fail, 2 or 3 failed, 6 cancelled, 5 open."""
        if self.state == "SUCCEEDED":
            return 1 if self.verdict == "fail" else 0
        if self.state == "CANCELED":
            return 6
        if self.state == "FAILED":
            return 2 if (self.error or {}).get("exit_status") == 2 else 3
        return 3 if self.state == "EXPIRED" else 5

    @property
    def reason(self) -> str:
        """Why the job did not succeed, for a person; empty when it did."""
        if self.error:
            return f"{self.error['code']}: {self.error['detail']}"
        return "" if self.state == "SUCCEEDED" else self.state

    def raise_for_state(self) -> None:
        """Raise JobFailed or JobCanceled when the job ended otherwise than SUCCEEDED."""
        if self.state == "CANCELED":
            raise JobCanceled(f"job {self.id} was cancelled")
        if self.ended and self.state != "SUCCEEDED":
            raise JobFailed(f"job {self.id}: {self.reason}", self.exit_status)


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, and the token of the next page."""

    items: tuple[Job, ...]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file of a finished job."""

    name: str
    role: str
    media_type: str
    size: int
    sha256: str

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Artifact:
        return cls(raw["name"], raw["role"], raw["media_type"], raw["size"], raw["sha256"])


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job; ``number`` has no gaps."""

    number: int
    kind: str
    body: Mapping[str, Any]
