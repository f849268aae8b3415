"""Every error code of the service, once: title, HTTP status, whether trying again may help, and what to do.

API answers and job errors both use it, and ``docs/errors.md`` describes each code (a test compares).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Problem:
    """One code of the table."""

    code: str
    title: str
    status: int
    retryable: bool
    hint: str


def _table(*rows: tuple[str, str, int, bool, str]) -> dict[str, Problem]:
    return {row[0]: Problem(*row) for row in rows}


PROBLEMS: Final[Mapping[str, Problem]] = _table(
    # the request
    ("MALFORMED", "The request cannot be read", 400, False, "Compare it with /openapi.json."),
    ("UNAUTHENTICATED", "No valid API key", 401, False, "Send `Authorization: Bearer mpk_…`."),
    ("FORBIDDEN", "The key may not do this", 403, False, "Use a key with the scope that the message names."),
    ("FOREIGN_HOST", "The Host or Origin is not answered", 403, False, "Use the service's own address, or keys."),
    ("NOT_FOUND", "There is no such thing", 404, False, "Check the id; things of other tenants do not exist."),
    ("METHOD_NOT_ALLOWED", "The path does not know this verb", 405, False, "See the Allow header."),
    ("TOO_SLOW", "The request came too slowly", 408, True, "Send it again; HEAD an upload and go on at its offset."),
    ("CONFLICT", "The state does not allow it", 409, False, "Read the resource and decide anew."),
    ("OFFSET_MISMATCH", "The upload continues elsewhere", 409, True, "HEAD the upload and go on at its offset."),
    ("RESOURCE_IN_USE", "An open job uses it", 409, True, "Wait for the job, or cancel it."),
    ("GONE", "Its time is over", 410, False, "Upload or run it again; see `expires_at`."),
    ("PRECONDITION_FAILED", "A precondition does not hold", 412, False, "Read the resource again."),
    ("TOO_LARGE", "Too large", 413, False, "Stay below `limit`, or ask the operator."),
    ("QUOTA_BYTES", "No storage left for this tenant", 413, False, "Delete models and jobs, or wait for expiry."),
    ("UNSUPPORTED_MEDIA_TYPE", "This kind of content is not taken", 415, False, "See the message for what is."),
    ("RANGE_NOT_SATISFIABLE", "The range lies outside the file", 416, False, "Ask for a range within its size."),
    ("INVALID_REQUEST", "The request makes no sense", 422, False, "`errors` points at every field."),
    ("RECEIVER_REFUSED", "The webhook's address may not be called", 422, False, "Use https and a public address."),
    ("DIGEST_MISMATCH", "The bytes are not the announced ones", 422, True, "Send the file again."),
    ("IDEMPOTENCY_REUSED", "The key was used for another request", 422, False, "Use a new Idempotency-Key."),
    ("UPLOAD_LOCKED", "Another request is writing this upload", 423, True, "Wait, HEAD, then go on."),
    ("HEADERS_TOO_LARGE", "The header is too large", 431, False, "Send fewer and shorter header fields."),
    ("RATE_LIMITED", "Too many requests", 429, True, "Wait as long as Retry-After says."),
    ("QUOTA_JOBS", "Too many open jobs", 429, True, "Wait for some of them to end."),
    ("CHECKSUM_MISMATCH", "The chunk does not have its checksum", 460, True, "Send the chunk again."),
    ("NOT_READY", "A part of the service is down", 503, True, "`checks` names it."),
    ("DATABASE_UNAVAILABLE", "The database does not answer", 503, True, "Try again; nothing was changed."),
    ("BROKER_UNAVAILABLE", "The broker does not answer", 503, True, "Jobs are taken and wait; nothing is lost."),
    ("BROKER_UNFIT", "The broker would lose jobs", 503, False, "Set its maxmemory-policy to noeviction."),
    ("STORAGE_FULL", "No space left on the service", 507, True, "An operator has to free space."),
    # the run
    ("INVALID_INPUT", "The input cannot be converted", 422, False, "The message names the culprit."),
    ("MODEL_PARSE_ERROR", "The model cannot be read", 422, False, "Check the file with `narrowcast inspect`."),
    ("INPUT_MISMATCH", "The batch does not fit the model", 422, False, "Use the graph's input names as keys."),
    ("INVALID_OPTION", "An option cannot be used", 422, False, "The message names the option."),
    ("UNSAFE_CONTENT", "This content is never loaded", 415, False, "Export to ONNX or .pt2."),
    ("UNSUPPORTED_FORMAT", "This kind of model is not taken", 415, False, "The message has the way out."),
    ("UNSUPPORTED_OPSET", "The operator set is not taken", 422, False, "Export the model again, or upgrade."),
    ("EXTERNAL_DATA_MISSING", "A data file of the model is missing", 422, False, "Upload it beside the model."),
    ("EXTERNAL_DATA_FORBIDDEN", "A tensor points where it may not", 422, False, "Save the model again."),
    ("WEIGHTS_UNREADABLE", "The model's weights cannot be read", 422, False, "Save the model again."),
    ("EXPORT_FAILED", "PyTorch cannot export the program", 422, False, "The message quotes the exporter."),
    ("TRACE_MISMATCH", "The export computes something else", 422, False, "Save the program another way."),
    ("PACKAGE_MISSING", "A package is not installed here", 503, False, "An operator has to install it."),
    ("OUTPUT_FAILED", "The result cannot be written", 507, True, "An operator has to look at the disk."),
    ("ENVIRONMENT", "The machine failed", 503, True, "Run the job again."),
    ("RUNTIME_CRASH", "The engine died", 500, True, "Keep the named node out of the model, or report it."),
    ("OUT_OF_MEMORY", "The run needed too much memory", 503, True, "Smaller batches, or a larger worker."),
    ("DISK_FULL", "The worker's disk is full", 507, True, "An operator has to free space."),
    ("DEADLINE_EXCEEDED", "The run took too long", 504, False, "Ask for a longer `deadline_s`."),
    ("ATTEMPTS_EXHAUSTED", "No attempt came to an end", 500, True, "See `attempts`; then retry."),
    ("WORKER_LOST", "The worker vanished", 503, True, "The job is tried again by itself."),
    ("INTERNAL", "A bug in narrowcast", 500, False, "Report it with the request id."),
)


def problem(code: str) -> Problem:
    """The row of a code; a code the table does not know is a bug and reads as one."""
    return PROBLEMS.get(code, PROBLEMS["INTERNAL"])
