"""Every sequence of requests, once, for both clients."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from api.client.calls import Call, Flow, Pause, Reply, Source, Work, pause_before
from api.client.errors import RequestRefused, ServiceFailed, ServiceUnreachable, WaitTimedOut
from api.client.memory import UploadMemory, digest_of
from api.client.model_files import batch_files, files_of_model
from api.client.records import Artifact, Job, JobPage

LONG_POLL_S: Final = 25.0
BREAKS: Final = 20
"""How often one upload or download may break off without progress in between before it is given up."""

OnBytes = Callable[[str, int, int], None]
"""Called with (what, bytes done, bytes in all)."""


def silent(*_: object) -> None:
    """Nobody wants to know."""


def upload(path: Path, memory: UploadMemory, on_bytes: OnBytes = silent) -> Flow[str]:
    """Make the file's content a blob; ``sha256:…``.  Goes on where an earlier try, or process, was cut off."""
    size = path.stat().st_size
    known = yield Work(lambda: memory.recall(path))
    digest = known.get("sha256")
    if digest is None:
        digest = yield Work(lambda: digest_of(path))
        yield Work(lambda: memory.remember(path, sha256=digest))
    if (yield from _is_there(digest)):
        on_bytes(path.name, size, size)
        return f"sha256:{digest}"
    place = known.get("upload")
    offset = (yield from _offset(place)) if place else None
    if offset is None:
        asked = {"size": size, "sha256": digest, "filename": path.name[:255]}
        reply = yield Call("POST", "/v1/uploads", json=asked, headers=_key())
        body = reply.ok()
        if reply.status == 200:
            on_bytes(path.name, size, size)
            return str(body["blob"])
        place = str(reply.headers["location"])
        yield Work(lambda: memory.remember(path, upload=place))
        offset = 0
    assert place is not None
    yield from _send(path, size, place, offset, on_bytes)
    return f"sha256:{digest}"


def _is_there(digest: str) -> Flow[bool]:
    """Whether the service has this content from us."""
    reply = yield Call("HEAD", f"/v1/blobs/sha256:{digest}")
    if reply.status == 404:
        return False
    reply.ok()
    return True


def _offset(place: str) -> Flow[int | None]:
    """Where the upload goes on; None when the service does not know it any more."""
    reply = yield Call("HEAD", place)
    if reply.status in (404, 410):
        return None
    reply.ok()
    return int(reply.headers["upload-offset"])


def _send(path: Path, size: int, place: str, offset: int, on_bytes: OnBytes) -> Flow[None]:
    """Send the rest of the file, as often as the connection breaks."""
    breaks = 0
    while True:
        before = offset
        reply: Reply | None = None
        trouble: ServiceUnreachable | None = None
        try:
            reply = yield Call(
                "PATCH",
                place,
                headers={"Upload-Offset": str(offset), "Content-Type": "application/offset+octet-stream"},
                source=Source(path, offset, size),
                repeat=False,
                timeout_s=300,
                on_bytes=lambda done, start=before: on_bytes(path.name, start + done, size),  # type: ignore[misc]
            )
            if reply.status == 204 and int(reply.headers["upload-offset"]) == size:
                return
            if reply.status not in (400, 408, 409, 423, 429, 500, 502, 503, 504):
                reply.ok()
        except ServiceUnreachable as error:
            trouble = error
        found = yield from _offset(place)
        if found is None:
            raise ServiceFailed(f"the service forgot the upload of {path.name}; send it again")
        offset = found
        breaks = 0 if offset > before else breaks + 1
        if breaks > BREAKS:
            raise trouble or ServiceFailed(f"the upload of {path.name} does not get beyond byte {offset}")
        yield Pause(pause_before(breaks, reply))


def create_model(path: Path, memory: UploadMemory, on_bytes: OnBytes = silent) -> Flow[str]:
    """Send the model with its external data; the id of the model."""
    files = yield Work(lambda: files_of_model(path))
    manifest = []
    for name, file in files.items():
        blob = yield from upload(file, memory, on_bytes)
        manifest.append({"path": name, "blob": blob})
    reply = yield Call("POST", "/v1/models", json={"files": manifest, "entry": path.name}, headers=_key())
    return str(reply.ok()["id"])


def create_inputs(paths: Sequence[Path], memory: UploadMemory, on_bytes: OnBytes = silent) -> Flow[list[str]]:
    """Send the batches; their ids."""
    found = []
    for file in (yield Work(lambda: batch_files(list(paths)))):
        blob = yield from upload(file, memory, on_bytes)
        asked = {"blob": blob, "filename": file.name}
        reply = yield Call("POST", "/v1/inputs", json=asked, headers=_key())
        found.append(str(reply.ok()["id"]))
    return found


def submit(
    model: Path | str,
    samples: Sequence[Path | str],
    fields: Mapping[str, Any],
    memory: UploadMemory,
    on_bytes: OnBytes = silent,
    idempotency_key: str | None = None,
) -> Flow[Job]:
    """Send what is a path, use what is an id, and start the job."""
    model_id = model if isinstance(model, str) else (yield from create_model(model, memory, on_bytes))
    ids = [one for one in samples if isinstance(one, str)]
    ids += yield from create_inputs([one for one in samples if not isinstance(one, str)], memory, on_bytes)
    asked = {"model": model_id, "inputs": ids, **fields}
    headers = {"Idempotency-Key": idempotency_key} if idempotency_key else _key()
    reply = yield Call("POST", "/v1/jobs", json=asked, headers=headers)
    return Job.from_json(reply.ok())


def option_file(path: Path, memory: UploadMemory) -> Flow[dict[str, str]]:
    """A file given for an option, as the job's options name it."""
    blob = yield from upload(path, memory)
    return {"filename": path.name, "blob": blob}


def read_job(job_id: str) -> Flow[Job]:
    reply = yield Call("GET", f"/v1/jobs/{job_id}")
    return Job.from_json(reply.ok())


def list_jobs(filters: Mapping[str, Any]) -> Flow[JobPage]:
    given = {name: value for name, value in filters.items() if value is not None}
    body = (yield Call("GET", "/v1/jobs", params=given)).ok()
    return JobPage(tuple(Job.from_json(one) for one in body["items"]), body["next_page_token"])


def wait(job_id: str, timeout_s: float | None, on_job: Callable[[Job], None] = silent) -> Flow[Job]:
    """Follow the job to its end; raises WaitTimedOut, which leaves the job alone."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    etag = ""
    job: Job | None = None
    while True:
        left = LONG_POLL_S if deadline is None else max(0.0, min(LONG_POLL_S, deadline - time.monotonic()))
        reply = yield Call(
            "GET",
            f"/v1/jobs/{job_id}",
            params={"wait": f"{left:.2f}"} if etag else {},
            headers={"If-None-Match": etag} if etag else {},
            timeout_s=LONG_POLL_S + 15,
        )
        if reply.status != 304:
            job = Job.from_json(reply.ok())
            on_job(job)
            if job.ended:
                return job
        etag = reply.headers.get("etag", "")
        if deadline is not None and time.monotonic() >= deadline:
            state = job.state if job else "unknown"
            raise WaitTimedOut(f"job {job_id} is still {state} after {timeout_s:g} s; it goes on", job)


def cancel(job_id: str) -> Flow[Job]:
    reply = yield Call("POST", f"/v1/jobs/{job_id}/cancel", headers=_key())
    return Job.from_json(reply.ok())


def retry(job_id: str) -> Flow[Job]:
    reply = yield Call("POST", f"/v1/jobs/{job_id}/retry", headers=_key())
    return Job.from_json(reply.ok())


def delete(job_id: str) -> Flow[None]:
    (yield Call("DELETE", f"/v1/jobs/{job_id}")).ok()


def artifacts(job_id: str) -> Flow[list[Artifact]]:
    body = (yield Call("GET", f"/v1/jobs/{job_id}/artifacts")).ok()
    return [Artifact.from_json(one) for one in body["items"]]


def read_report(job_id: str) -> Flow[dict[str, Any]]:
    body = (yield Call("GET", f"/v1/jobs/{job_id}/report", headers={"Accept": "application/json"})).ok()
    return dict(body)


def layers(job_id: str, params: Mapping[str, Any]) -> Flow[dict[str, Any]]:
    given = {name: value for name, value in params.items() if value is not None}
    return dict((yield Call("GET", f"/v1/jobs/{job_id}/layers", params=given)).ok())


def download(job_id: str, artifact: Artifact, target: Path, on_bytes: OnBytes = silent) -> Flow[Path]:
    """Fetch one file to ``target``: resumed after a break, checked, renamed when it is whole.

    The unfinished file's name holds the content's digest, so that another process can go on with it.
    """
    part = target.with_name(f".{target.name}.{artifact.sha256[:12]}.tmp-narrowcast")
    target.parent.mkdir(parents=True, exist_ok=True)
    breaks = 0
    while (before := part.stat().st_size if part.exists() else 0) < artifact.size or not part.exists():
        headers = {"Range": f"bytes={before}-", "If-Range": f'"sha256:{artifact.sha256}"'} if before else {}
        trouble: ServiceUnreachable | None = None
        try:
            reply = yield Call(
                "GET",
                f"/v1/jobs/{job_id}/artifacts/{artifact.name}",
                headers=headers,
                sink=part,
                repeat=False,
                timeout_s=300,
                on_bytes=lambda done, start=before: on_bytes(artifact.name, start + done, artifact.size),  # type: ignore[misc]
            )
            reply.ok()
        except ServiceUnreachable as error:
            trouble = error
        after = part.stat().st_size if part.exists() else 0
        breaks = 0 if after > before or after == artifact.size else breaks + 1
        if breaks > BREAKS:
            raise trouble or ServiceFailed(f"the download of {artifact.name} does not get beyond byte {after}")
        if trouble is not None:
            yield Pause(pause_before(breaks, None))
    found = yield Work(lambda: digest_of(part))
    if found != artifact.sha256:
        part.unlink()
        raise ServiceFailed(f"{artifact.name} arrived with SHA-256 {found}, announced was {artifact.sha256}")
    part.replace(target)
    return target


def download_all(job_id: str, folder: Path, roles: Sequence[str], on_bytes: OnBytes = silent) -> Flow[list[Path]]:
    """Fetch the job's files into a folder: all of them, or those with one of the roles; the model file last."""
    files = yield from artifacts(job_id)
    wanted = [one for one in files if not roles or one.role in roles]
    if roles and not wanted:
        raise RequestRefused(f"job {job_id} has no file with a role of {', '.join(roles)}")
    found: list[Path] = []
    for one in sorted(wanted, key=lambda file: file.role == "model"):
        found += [(yield from download(job_id, one, folder / one.name, on_bytes))]
    return found


def capabilities() -> Flow[dict[str, Any]]:
    return dict((yield Call("GET", "/v1/capabilities")).ok())


def _key() -> dict[str, str]:
    """A POST with a key of its own may be sent again."""
    return {"Idempotency-Key": str(uuid.uuid4())}
