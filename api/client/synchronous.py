"""The client for ordinary code."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import httpx2

from api.client import flows
from api.client.calls import PASSING, TRIES, Call, Flow, Pause, Reply, Source, Work, pause_before
from api.client.errors import ServiceUnreachable
from api.client.memory import UploadMemory
from api.client.records import TERMINAL, Artifact, Event, Job, JobPage

T = TypeVar("T")
PIECE_BYTES: Final = 2**20
DEFAULT_URL: Final = "http://127.0.0.1:8000"


def address(url: str | None) -> str:
    return (url or os.environ.get("NARROWCAST_URL") or DEFAULT_URL).rstrip("/")


def default_headers(api_key: str | None) -> dict[str, str]:
    key = api_key or os.environ.get("NARROWCAST_API_KEY")
    return {"User-Agent": "narrowcast-client/1"} | ({"Authorization": f"Bearer {key}"} if key else {})


class Client:
    """Talks to a service.

    Reads are retried, with jitter and as ``Retry-After`` asks; every POST carries an Idempotency-Key and is retried
    too; uploads and downloads go on where they were cut off, also in another process.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        state_dir: Path | None = None,
        tries: int = TRIES,
    ) -> None:
        """``url`` and ``api_key`` default to NARROWCAST_URL and NARROWCAST_API_KEY."""
        self.url = address(url)
        self.memory = UploadMemory(self.url, state_dir)
        self._tries = tries
        self._http = httpx2.Client(base_url=self.url, headers=default_headers(api_key), transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def upload(self, path: Path, on_bytes: flows.OnBytes = flows.silent) -> str:
        """Make the file's content a blob: ``sha256:…``."""
        return self._run(flows.upload(path, self.memory, on_bytes))

    def create_model(self, path: Path, on_bytes: flows.OnBytes = flows.silent) -> str:
        """Send a model with its external data; its id."""
        return self._run(flows.create_model(path, self.memory, on_bytes))

    def create_inputs(self, paths: Sequence[Path], on_bytes: flows.OnBytes = flows.silent) -> list[str]:
        """Send batches (files, or folders of them); their ids."""
        return self._run(flows.create_inputs(paths, self.memory, on_bytes))

    def option_file(self, path: Path) -> dict[str, str]:
        """Send a policy or tolerance file; what to give for that option."""
        return self._run(flows.option_file(path, self.memory))

    def submit(
        self,
        model: Path | str,
        samples: Sequence[Path | str] = (),
        *,
        options: Mapping[str, Any] | None = None,
        on_bytes: flows.OnBytes = flows.silent,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Job:
        """Start a conversion.  Paths are sent, strings are ids; ``fields`` are those of ``POST /v1/jobs``."""
        wanted = {"options": dict(options or {}), **fields}
        return self._run(flows.submit(model, samples, wanted, self.memory, on_bytes, idempotency_key))

    def job(self, job_id: str) -> Job:
        return self._run(flows.read_job(job_id))

    def jobs(self, **filters: Any) -> JobPage:
        """One page of jobs; filters as in ``GET /v1/jobs``."""
        return self._run(flows.list_jobs(filters))

    def wait(self, job_id: str, timeout_s: float | None = None, on_job: Callable[[Job], None] = flows.silent) -> Job:
        """The job at its end; raises WaitTimedOut, which leaves the job alone."""
        return self._run(flows.wait(job_id, timeout_s, on_job))

    def cancel(self, job_id: str) -> Job:
        return self._run(flows.cancel(job_id))

    def retry(self, job_id: str) -> Job:
        return self._run(flows.retry(job_id))

    def delete(self, job_id: str) -> None:
        self._run(flows.delete(job_id))

    def artifacts(self, job_id: str) -> list[Artifact]:
        return self._run(flows.artifacts(job_id))

    def download(
        self, job_id: str, folder: Path, roles: Sequence[str] = (), on_bytes: flows.OnBytes = flows.silent
    ) -> list[Path]:
        """Fetch the job's files (or those with one of the roles) into a folder, verified."""
        return self._run(flows.download_all(job_id, folder, roles, on_bytes))

    def download_file(
        self, job_id: str, artifact: Artifact, target: Path, on_bytes: flows.OnBytes = flows.silent
    ) -> Path:
        """Fetch one file under a name of your own."""
        return self._run(flows.download(job_id, artifact, target, on_bytes))

    def report(self, job_id: str) -> dict[str, Any]:
        """The JSON report."""
        return self._run(flows.read_report(job_id))

    def layers(self, job_id: str, **params: Any) -> dict[str, Any]:
        """A page of layers; ``sort``, ``op_type``, ``node``, ``value``, ``page_size``, ``page_token``."""
        return self._run(flows.layers(job_id, params))

    def capabilities(self) -> dict[str, Any]:
        return self._run(flows.capabilities())

    def events(self, job_id: str, after: int = 0) -> Iterator[Event]:
        """The job's events to its end; a broken stream is taken up again behind the last event seen."""
        breaks = 0
        while True:
            number = after
            try:
                for event in self._stream(job_id, after):
                    after = event.number
                    yield event
                    if event.kind == "state" and event.body.get("state") in TERMINAL:
                        return
            except ServiceUnreachable:
                breaks = 0 if after > number else breaks + 1
                if breaks >= self._tries:
                    raise
            time.sleep(pause_before(breaks, None))

    def _stream(self, job_id: str, after: int) -> Iterator[Event]:
        with self._translated():
            timeout = httpx2.Timeout(30, read=60)
            headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
            with self._http.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    reply_of(answer).ok()
                parser = EventParser()
                for line in answer.iter_lines():
                    if (event := parser.line(line)) is not None:
                        yield event

    def _run(self, flow: Flow[T]) -> T:
        """Drive a flow to its result."""
        value: Any = None
        error: ServiceUnreachable | None = None
        while True:
            try:
                step = flow.throw(error) if error is not None else flow.send(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            value, error = None, None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            elif isinstance(step, Work):
                value = step.act()
            else:
                try:
                    value = self._send(step)
                except ServiceUnreachable as trouble:
                    error = trouble

    def _send(self, call: Call) -> Reply:
        """Send a request, again and again when that may help."""
        tries = self._tries if call.repeat else 1
        for attempt in range(tries):
            reply: Reply | None = None
            try:
                reply = self._send_once(call)
                if reply.status not in PASSING or attempt == tries - 1:
                    return reply
            except ServiceUnreachable:
                if attempt == tries - 1:
                    raise
            time.sleep(pause_before(attempt, reply))
        raise AssertionError("unreachable")

    def _send_once(self, call: Call) -> Reply:
        headers = dict(call.headers)
        content: Iterator[bytes] | None = None
        if call.source is not None:
            headers["Content-Length"] = str(call.source.stop - call.source.start)
            content = _pieces(call.source, call.on_bytes)
        with (
            self._translated(),
            self._http.stream(
                call.method,
                call.path,
                headers=headers,
                params=dict(call.params),
                json=call.json,
                content=content,
                timeout=httpx2.Timeout(call.timeout_s, connect=10),
            ) as answer,
        ):
            if call.sink is not None and answer.status_code in (200, 206):
                with call.sink.open("wb" if answer.status_code == 200 else "ab") as file:
                    done = 0
                    for piece in answer.iter_bytes(PIECE_BYTES):
                        file.write(piece)
                        done += len(piece)
                        call.on_bytes(done)
                return Reply(answer.status_code, answer.headers, None)
            answer.read()
            return reply_of(answer)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise unreachable(self.url, error) from error


def unreachable(url: str, error: Exception) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"no answer from {url}: {error or type(error).__name__}; is the service running, and is NARROWCAST_URL right?"
    )


def reply_of(answer: httpx2.Response) -> Reply:
    try:
        body = answer.json() if answer.content else None
    except ValueError:
        body = None
    return Reply(answer.status_code, answer.headers, body)


def _pieces(source: Source, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    with source.path.open("rb") as file:
        file.seek(source.start)
        left = source.stop - source.start
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
            on_bytes(source.stop - source.start - left)


class EventParser:
    """Lines of an event stream, one after another, to events."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def line(self, line: str) -> Event | None:
        if line:
            name, _, value = line.partition(":")
            if name:
                self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if "id" not in fields or "data" not in fields:
            return None
        return Event(int(fields["id"]), fields.get("event", "message"), json.loads(fields["data"]))
