"""Answers that say no: RFC 9457 problem documents with a code of ``worker.problems``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from api.schemas import OPTION_NAMES
from converter.errors import NarrowcastError
from worker.problems import problem

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = {"DATABASE_UNAVAILABLE": 2, "RATE_LIMITED": 1, "QUOTA_JOBS": 10, "UPLOAD_LOCKED": 1}
_BY_STATUS: Final = {
    400: "MALFORMED", 401: "UNAUTHENTICATED", 403: "FORBIDDEN", 404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED",
    413: "TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE", 422: "INVALID_REQUEST",
}  # fmt: skip


class ApiError(HTTPException):
    """Ends a request with the problem of ``code``; ``extra`` adds members such as ``limit`` and ``actual``.

    An HTTPException because those are what FastAPI lets through while it reads a body.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
        **extra: Any,
    ) -> None:
        super().__init__(problem(code).status, detail, dict(headers or {}))
        self.code = code
        self.errors = list(errors)
        self.extra = extra


def not_found(kind: str, name: str) -> ApiError:
    return ApiError("NOT_FOUND", f"there is no {kind} {name[:100]!r}")


def problem_body(code: str, detail: str, request: Request | None = None, **extra: Any) -> dict[str, Any]:
    """The document itself; ``type`` is the page of the code below this service."""
    row = problem(code)
    body: dict[str, Any] = {
        "type": f"/errors/{row.code}",
        "title": row.title,
        "status": row.status,
        "detail": detail,
        "code": row.code,
        "retryable": row.retryable,
        "hint": row.hint,
    }
    if request is not None:
        body |= {"instance": request.url.path, "request_id": request.scope.get("narrowcast.request_id", "")}
    return body | {name: value for name, value in extra.items() if value not in (None, [])}


def _answer(request: Request, error: ApiError) -> JSONResponse:
    body = problem_body(error.code, error.detail, request, errors=error.errors, **error.extra)
    headers = dict(error.headers or {})
    if error.code in RETRY_AFTER_S:
        headers.setdefault("Retry-After", str(RETRY_AFTER_S[error.code]))
    elif body["status"] == 503:
        headers.setdefault("Retry-After", "5")
    return JSONResponse(body, body["status"], headers, MEDIA_TYPE)


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    code = _BY_STATUS.get(error.status_code, "INTERNAL" if error.status_code >= 500 else "MALFORMED")
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path[:200]!r}"
    return _answer(request, ApiError(code, detail, headers=dict(error.headers or {})))


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    code = "MALFORMED" if any(one["type"] == "json_invalid" for one in error.errors()) else "INVALID_REQUEST"
    return _answer(request, ApiError(code, "the request does not fit the schema", errors=field_errors(error.errors())))


async def _engine_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, NarrowcastError)
    return _answer(request, ApiError(error.code, str(error)))


def field_errors(found: Sequence[Any], known: Sequence[str] = ()) -> list[dict[str, str]]:
    """Validation errors as JSON pointers with a stable code, and a guess what an unknown name meant."""
    errors = []
    for one in found:
        place = [str(part) for part in one["loc"] if part not in ("body", "query", "header", "path")]
        message = str(one["msg"])
        if one["type"] == "extra_forbidden":
            close = get_close_matches(place[-1], list(known) or OPTION_NAMES, n=1)
            message = f"there is no field {place[-1][:60]!r}" + (f"; did you mean {close[0]!r}?" if close else "")
        pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in place)
        errors.append({"pointer": pointer, "code": str(one["type"]).upper(), "message": message[:500]})
    return errors


def install(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(NarrowcastError, _engine_error)
