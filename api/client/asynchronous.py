"""The client for asyncio: the methods of ``Client``, awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx2

from api.client import flows
from api.client.calls import PASSING, TRIES, Call, Flow, Pause, Reply, Source, Work, pause_before
from api.client.errors import ServiceUnreachable
from api.client.memory import UploadMemory
from api.client.records import TERMINAL, Artifact, Event, Job, JobPage
from api.client.synchronous import PIECE_BYTES, EventParser, address, default_headers, reply_of, unreachable

T = TypeVar("T")


class AsyncClient:
    """See ``Client``."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        state_dir: Path | None = None,
        tries: int = TRIES,
    ) -> None:
        self.url = address(url)
        self.memory = UploadMemory(self.url, state_dir)
        self._tries = tries
        self._http = httpx2.AsyncClient(base_url=self.url, headers=default_headers(api_key), transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def upload(self, path: Path, on_bytes: flows.OnBytes = flows.silent) -> str:
        return await self._run(flows.upload(path, self.memory, on_bytes))

    async def create_model(self, path: Path, on_bytes: flows.OnBytes = flows.silent) -> str:
        return await self._run(flows.create_model(path, self.memory, on_bytes))

    async def create_inputs(self, paths: Sequence[Path], on_bytes: flows.OnBytes = flows.silent) -> list[str]:
        return await self._run(flows.create_inputs(paths, self.memory, on_bytes))

    async def option_file(self, path: Path) -> dict[str, str]:
        return await self._run(flows.option_file(path, self.memory))

    async def submit(
        self,
        model: Path | str,
        samples: Sequence[Path | str] = (),
        *,
        options: Mapping[str, Any] | None = None,
        on_bytes: flows.OnBytes = flows.silent,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Job:
        wanted = {"options": dict(options or {}), **fields}
        return await self._run(flows.submit(model, samples, wanted, self.memory, on_bytes, idempotency_key))

    async def job(self, job_id: str) -> Job:
        return await self._run(flows.read_job(job_id))

    async def jobs(self, **filters: Any) -> JobPage:
        return await self._run(flows.list_jobs(filters))

    async def wait(
        self, job_id: str, timeout_s: float | None = None, on_job: Callable[[Job], None] = flows.silent
    ) -> Job:
        return await self._run(flows.wait(job_id, timeout_s, on_job))

    async def cancel(self, job_id: str) -> Job:
        return await self._run(flows.cancel(job_id))

    async def retry(self, job_id: str) -> Job:
        return await self._run(flows.retry(job_id))

    async def delete(self, job_id: str) -> None:
        await self._run(flows.delete(job_id))

    async def artifacts(self, job_id: str) -> list[Artifact]:
        return await self._run(flows.artifacts(job_id))

    async def download(
        self, job_id: str, folder: Path, roles: Sequence[str] = (), on_bytes: flows.OnBytes = flows.silent
    ) -> list[Path]:
        return await self._run(flows.download_all(job_id, folder, roles, on_bytes))

    async def download_file(
        self, job_id: str, artifact: Artifact, target: Path, on_bytes: flows.OnBytes = flows.silent
    ) -> Path:
        return await self._run(flows.download(job_id, artifact, target, on_bytes))

    async def report(self, job_id: str) -> dict[str, Any]:
        return await self._run(flows.read_report(job_id))

    async def layers(self, job_id: str, **params: Any) -> dict[str, Any]:
        return await self._run(flows.layers(job_id, params))

    async def capabilities(self) -> dict[str, Any]:
        return await self._run(flows.capabilities())

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[Event]:
        breaks = 0
        while True:
            number = after
            try:
                async for event in self._stream(job_id, after):
                    after = event.number
                    yield event
                    if event.kind == "state" and event.body.get("state") in TERMINAL:
                        return
            except ServiceUnreachable:
                breaks = 0 if after > number else breaks + 1
                if breaks >= self._tries:
                    raise
            await asyncio.sleep(pause_before(breaks, None))

    async def _stream(self, job_id: str, after: int) -> AsyncIterator[Event]:
        timeout = httpx2.Timeout(30, read=60)
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        with self._translated():
            async with self._http.stream(
                "GET", f"/v1/jobs/{job_id}/events", headers=headers, timeout=timeout
            ) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                    reply_of(answer).ok()
                parser = EventParser()
                async for line in answer.aiter_lines():
                    if (event := parser.line(line)) is not None:
                        yield event

    async def _run(self, flow: Flow[T]) -> T:
        value: Any = None
        error: ServiceUnreachable | None = None
        while True:
            try:
                step = flow.throw(error) if error is not None else flow.send(value)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            value, error = None, None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Work):
                value = await asyncio.to_thread(step.act)
            else:
                try:
                    value = await self._send(step)
                except ServiceUnreachable as trouble:
                    error = trouble

    async def _send(self, call: Call) -> Reply:
        tries = self._tries if call.repeat else 1
        for attempt in range(tries):
            reply: Reply | None = None
            try:
                reply = await self._send_once(call)
                if reply.status not in PASSING or attempt == tries - 1:
                    return reply
            except ServiceUnreachable:
                if attempt == tries - 1:
                    raise
            await asyncio.sleep(pause_before(attempt, reply))
        raise AssertionError("unreachable")

    async def _send_once(self, call: Call) -> Reply:
        headers = dict(call.headers)
        content: AsyncIterator[bytes] | None = None
        if call.source is not None:
            headers["Content-Length"] = str(call.source.stop - call.source.start)
            content = _pieces(call.source, call.on_bytes)
        with self._translated():
            async with self._http.stream(
                call.method,
                call.path,
                headers=headers,
                params=dict(call.params),
                json=call.json,
                content=content,
                timeout=httpx2.Timeout(call.timeout_s, connect=10),
            ) as answer:
                if call.sink is not None and answer.status_code in (200, 206):
                    await _save(answer, call)
                    return Reply(answer.status_code, answer.headers, None)
                await answer.aread()
                return reply_of(answer)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TransportError as error:
            raise unreachable(self.url, error) from error


async def _save(answer: httpx2.Response, call: Call) -> None:
    assert call.sink is not None
    with call.sink.open("wb" if answer.status_code == 200 else "ab") as file:
        done = 0
        async for piece in answer.aiter_bytes(PIECE_BYTES):
            await asyncio.to_thread(file.write, piece)
            done += len(piece)
            call.on_bytes(done)


async def _pieces(source: Source, on_bytes: Callable[[int], None]) -> AsyncIterator[bytes]:
    with source.path.open("rb") as file:
        file.seek(source.start)
        left = source.stop - source.start
        while left and (piece := await asyncio.to_thread(file.read, min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
            on_bytes(source.stop - source.start - left)
