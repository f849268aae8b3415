"""What FastAPI cannot know of the interface, added to its description."""

from __future__ import annotations

from typing import Any

from api import schemas
from worker.problems import PROBLEMS


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Add the problem document, the hand-read request bodies, and keys."""
    known = document.setdefault("components", {}).setdefault("schemas", {})
    known["Problem"] = {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "retryable", "hint"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "instance": {"type": "string"},
            "code": {"type": "string", "enum": sorted(PROBLEMS)},
            "retryable": {"type": "boolean"},
            "hint": {"type": "string"},
            "request_id": {"type": "string"},
            "errors": {"type": "array", "items": {"type": "object"}},
            "limit": {"type": "number"},
            "actual": {"type": "number"},
        },
    }
    body = schemas.JobRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    known |= body.pop("$defs", {})
    known["JobRequest"] = body
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}, {}]
    for path in document["paths"].values():
        for verb in path.values():
            verb.get("responses", {}).pop("422", None)
    return document
