"""The interface as its own description: generated requests, good and bad, never end in a 500."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from api.app import create_app
from tests.service_kit import Stack, quick_settings
from worker.problems import PROBLEMS


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("fuzzed"), {"max_wait_s": 0.2, "sse_heartbeat_s": 0.2}) as stack:
        yield stack
        assert "Traceback" not in stack.api.text()


@schemathesis.serializer("application/offset+octet-stream", "application/partial-upload")
def as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


DESCRIPTION = create_app(quick_settings(Path("unused"))).openapi()
OPERATIONS = {one.ok().label: one.ok() for one in schemathesis.openapi.from_dict(DESCRIPTION).get_all_operations()}
GOOD = [(label, GenerationMode.POSITIVE) for label in sorted(OPERATIONS)]
BAD = [
    (label, GenerationMode.NEGATIVE)
    for label, one in sorted(OPERATIONS.items())
    if (len(one.query) or len(one.body)) and not label.startswith("PATCH /v1/uploads")
]
"""Requests that do not fit the description, for operations where there is something not to fit."""
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize(("label", "mode"), [*GOOD, *BAD])
def test_no_request_breaks_the_service(fuzzed: Stack, label: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[label]

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_it(case: Any) -> None:
        response = case.call(base_url=fuzzed.url, timeout=30)
        case.validate_response(response, checks=CHECKS)

    try_it()


def test_every_operation_says_what_it_does(fuzzed: Stack) -> None:
    document = fuzzed.http.get("/openapi.json").json()
    operations = [(path, verb, one) for path, verbs in document["paths"].items() for verb, one in verbs.items()]
    silent = [(path, verb) for path, verb, one in operations if not one.get("description") and not one.get("summary")]
    assert silent == []
    assert set(document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(PROBLEMS)
    with_examples = [name for name, one in document["components"]["schemas"].items() if "examples" in one]
    assert {"JobRequest", "ModelRequest", "InputRequest"} <= set(with_examples)
