"""What a flow may ask of its driver, and what it gets back.

A flow is a generator that says *what* is to be sent; a driver (synchronous or not) sends it.  So every sequence of
requests is written once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from api.client.errors import NotAuthorised, RequestRefused, ServiceFailed

T = TypeVar("T")
REQUEST_TIMEOUT_S: Final = 30.0
TRIES: Final = 6
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 20.0
PASSING: Final = frozenset({408, 423, 425, 429, 500, 502, 503, 504})
"""Statuses that may go away by themselves."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request.  ``repeat``: sending it twice does no harm, so a driver may retry it."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    source: Source | None = None
    sink: Path | None = None
    """File that a 200 answer's body replaces and a 206 answer's body is added to."""
    timeout_s: float = REQUEST_TIMEOUT_S
    repeat: bool = True
    on_bytes: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a file as a request's body."""

    path: Path
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Work:
    """Something slow that is no request, such as hashing a file."""

    act: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before going on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``body`` is its JSON, None when it has none."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def ok(self) -> Any:
        """The body of a good answer.

        Raises:
            NotAuthorised, RequestRefused, ServiceFailed: by status, with what the service says.
        """
        if self.status < 400:
            return self.body
        problem = self.body if isinstance(self.body, dict) else {}
        text = _text(self.status, problem)
        if self.status in (401, 403):
            raise NotAuthorised(text, self.status, problem)
        if self.status < 500:
            raise RequestRefused(text, self.status, problem)
        raise ServiceFailed(text)


Flow = Generator[Call | Work | Pause, Any, T]


def _text(status: int, problem: Mapping[str, Any]) -> str:
    if "detail" not in problem:
        return f"the service answered {status}"
    findings = "".join(f"\n  {one.get('pointer', '')}: {one.get('message', '')}" for one in problem.get("errors", []))
    hint = f" {problem['hint']}" if problem.get("hint") else ""
    return f"{problem['detail']} ({problem.get('code', status)}).{hint}{findings}"


def pause_before(attempt: int, reply: Reply | None) -> float:
    """Seconds before try number ``attempt`` + 1: what the service asks for, or longer and longer, with jitter."""
    asked = reply.headers.get("retry-after", "") if reply is not None else ""
    grown: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
    jittered = random.uniform(grown / 2, grown)
    return max(float(asked), jittered) if asked.isdigit() else jittered
