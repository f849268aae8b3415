"""From a request for a conversion to a job on record."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from api import schemas
from api.errors import ApiError, not_found
from api.idempotency import Answer
from api.service import Caller, Service
from api.views import show_job
from worker.contract import JobSpec, ModelFile, SampleBatch, State
from worker.database import contents, submit
from worker.database.engine import alone
from worker.deliveries import check_receiver

OPTION_FILES: Final = ("policy", "tolerance")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request whose references have been looked up."""

    spec: JobSpec
    name: str


def prepare(connection: Connection, tenant: str, body: schemas.JobRequest) -> Prepared:
    """Look up model, batches and option files.

    Raises:
        ApiError: NOT_FOUND for a reference that is not the tenant's, INVALID_REQUEST for a job that cannot run.
    """
    model = contents.find_model(connection, tenant, body.model)
    if model is None:
        raise not_found("model", body.model)
    options = body.options.model_dump(mode="json", by_alias=True, exclude={"policy", "tolerance"})
    if body.options.tolerance is not None and isinstance(body.options.tolerance, str):
        options["tolerance"] = body.options.tolerance
    if not body.inputs and body.options.validate_:
        missing = [{"pointer": "/inputs", "code": "MISSING", "message": "give a batch, or `validate: false`"}]
        raise ApiError("INVALID_REQUEST", "without a sample batch nothing can be validated", errors=missing)
    spec = JobSpec(
        model_id=model.id,
        entry=model.entry,
        files=contents.files_of(connection, model.id),
        batches=tuple(_batch(connection, tenant, name) for name in body.inputs),
        options=options,
        option_files=_option_files(connection, tenant, body.options),
    )
    return Prepared(spec, body.name or model.entry)


def _batch(connection: Connection, tenant: str, name: str) -> SampleBatch:
    row = contents.find_batch(connection, tenant, name)
    if row is None:
        raise not_found("input", name)
    return SampleBatch(row.id, row.filename, row.sha256 or "", row.size, row.generator)


def _option_files(connection: Connection, tenant: str, options: schemas.ConversionOptions) -> dict[str, ModelFile]:
    found = {}
    for name in OPTION_FILES:
        given = getattr(options, name)
        if not isinstance(given, schemas.OptionFile):
            continue
        held = contents.held_blob(connection, tenant, given.blob[7:])
        if held is None:
            missing = [{"pointer": f"/options/{name}/blob", "code": "NO_SUCH_BLOB", "message": "send it first"}]
            raise ApiError("INVALID_REQUEST", f"the blob of `{name}` is not here", errors=missing)
        found[name] = ModelFile(given.filename, held.sha256, held.size)
    return found


def submit_job(service: Service, connection: Connection, caller: Caller, body: schemas.JobRequest) -> Answer:
    """Write the job, or find an equal one that may be reused; the answer shows it."""
    prepared = prepare(connection, caller.tenant, body)
    if body.reuse == "allow":
        same = submit.find_success(connection, caller.tenant, submit.spec_digest(prepared.spec))
        if same is not None:
            return job_answer(connection, same, 200)
    new = submit.NewJob(
        tenant=caller.tenant,
        name=prepared.name,
        device=body.device,
        spec=prepared.spec,
        deadline_s=_deadline(service, body.deadline_s),
        labels=body.labels,
        webhook=_webhook(service, body.webhook),
        pinned=body.pinned,
    )
    return insert_new(service, connection, new)


def insert_new(service: Service, connection: Connection, new: submit.NewJob) -> Answer:
    """Write a job within the tenant's quota."""
    limit = service.settings.quota_open_jobs
    if limit:
        alone(connection, f"jobs of {new.tenant}")
    if limit and (count := submit.count_open(connection, new.tenant)) >= limit:
        raise ApiError("QUOTA_JOBS", f"{count} jobs are open", limit=limit, actual=count)
    row = submit.insert_job(connection, new)
    contents.touch(connection, new.spec.model_id, [one.id for one in new.spec.batches])
    return job_answer(connection, row, 202)


def job_answer(connection: Connection, row: Row[Any], status: int) -> Answer:
    shown = show_job(row, submit.attempts_of(connection, row.id))
    return Answer(status, shown.model_dump(mode="json"), f"/v1/jobs/{row.id}")


def retry_job(service: Service, connection: Connection, caller: Caller, job_id: str) -> Answer:
    """A new job with the same inputs and options as one that has ended."""
    old = submit.find_job(connection, caller.tenant, job_id)
    if old is None:
        raise not_found("job", job_id)
    if old.finished_at is None:
        raise ApiError("CONFLICT", f"the job is {old.state}; only one that has ended can be retried")
    spec = JobSpec.from_json(old.spec)
    gone = [one for one in _digests(spec) if contents.sees_blob(connection, caller.tenant, one) is None]
    if gone:
        raise ApiError("GONE", f"{len(gone)} of the job's files have expired; send them again")
    new = submit.NewJob(
        tenant=caller.tenant, name=old.name, device=old.device, spec=spec, deadline_s=old.deadline_s,
        labels=old.labels, webhook=old.webhook, retry_of=old.id, pinned=old.pinned,
    )  # fmt: skip
    return insert_new(service, connection, new)


def _digests(spec: JobSpec) -> list[str]:
    files: Sequence[ModelFile] = (*spec.files, *spec.option_files.values())
    return [one.sha256 for one in files] + [one.sha256 for one in spec.batches if one.sha256]


def _deadline(service: Service, wanted: float | None) -> float:
    settings = service.settings
    if wanted is None:
        return min(settings.default_deadline_s, settings.max_deadline_s)
    if wanted > settings.max_deadline_s:
        why = f"at most {settings.max_deadline_s:g} s are possible"
        pointer = [{"pointer": "/deadline_s", "code": "TOO_LONG", "message": why}]
        raise ApiError("INVALID_REQUEST", why, errors=pointer, limit=settings.max_deadline_s, actual=wanted)
    return wanted


def _webhook(service: Service, given: schemas.JobWebhook | None) -> Mapping[str, Any] | None:
    if given is None:
        return None
    check_receiver(given.url, service.settings.webhook_networks)
    return given.model_dump(mode="json")


def cancel_answer(service: Service, connection: Connection, caller: Caller, job_id: str) -> Answer:
    """202: it will stop; 200: it is cancelled; raises CONFLICT when it has ended otherwise."""
    row = submit.request_cancel(connection, caller.tenant, job_id, service.settings.keep_jobs_s)
    if row is None:
        raise not_found("job", job_id)
    if row.state in (State.SUCCEEDED, State.FAILED, State.EXPIRED):
        raise ApiError("CONFLICT", f"the job has ended as {row.state}")
    return job_answer(connection, row, 200 if row.state == State.CANCELED else 202)


def new_secret() -> str:
    """A signing secret in the shape of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()
