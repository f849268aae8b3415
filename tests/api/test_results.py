"""Files, ranges, digests, the report in its forms, layers, logs."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from tests.api.conftest import Desk, problem


@pytest.fixture
def job(desk: Desk) -> str:
    return desk.finished(["layers", 25], ["stderr", "engine says hello"])


def file_of(desk: Desk, job: str, role: str) -> dict[str, Any]:
    items = desk.http.get(f"/v1/jobs/{job}/artifacts").json()["items"]
    return next(one for one in items if one["role"] == role)


def digest_field(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def test_every_file_is_what_the_list_says(desk: Desk, job: str) -> None:
    items = desk.http.get(f"/v1/jobs/{job}/artifacts").json()["items"]
    assert {one["role"] for one in items} == {"model", "data", "report", "html", "csv", "junit", "markdown", "nodes"}
    for one in items:
        answer = desk.http.get(one["href"])
        assert hashlib.sha256(answer.content).hexdigest() == one["sha256"]
        assert len(answer.content) == one["size"] == int(answer.headers["content-length"])
        assert answer.headers["etag"] == f'"sha256:{one["sha256"]}"'
        assert answer.headers["repr-digest"] == digest_field(answer.content)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    ("text", "start", "stop"),
    [
        ("bytes=0-9", 0, 10),
        ("bytes=10-", 10, None),
        ("bytes=-7", -7, None),
        ("bytes=5-99999999", 5, None),
        ("bytes=0-0", 0, 1),
    ],
)
def test_ranges(desk: Desk, job: str, text: str, start: int, stop: int | None) -> None:
    file = file_of(desk, job, "report")
    whole = desk.http.get(file["href"]).content
    answer = desk.http.get(file["href"], headers={"Range": text})
    assert answer.status_code == 206
    assert answer.content == whole[start:stop]
    assert answer.headers["content-digest"] == digest_field(answer.content)
    assert answer.headers["repr-digest"] == digest_field(whole)
    first = start if start >= 0 else len(whole) + start
    assert answer.headers["content-range"] == f"bytes {first}-{first + len(answer.content) - 1}/{len(whole)}"


@pytest.mark.parametrize("text", ["bytes=99999999-", "bytes=-0"])
def test_ranges_outside_the_file(desk: Desk, job: str, text: str) -> None:
    file = file_of(desk, job, "report")
    answer = desk.http.get(file["href"], headers={"Range": text})
    problem(answer, 416, "RANGE_NOT_SATISFIABLE")
    assert answer.headers["content-range"] == f"bytes */{file['size']}"


@pytest.mark.parametrize("text", ["bytes=", "bytes=-", "bytes=9-3", "bytes=0-1,4-5", "lines=1-2", "bytes=a-b"])
def test_ranges_we_do_not_take_give_the_whole_file(desk: Desk, job: str, text: str) -> None:
    file = file_of(desk, job, "report")
    answer = desk.http.get(file["href"], headers={"Range": text})
    assert (answer.status_code, len(answer.content)) == (200, file["size"])


def test_conditions(desk: Desk, job: str) -> None:
    file = file_of(desk, job, "report")
    etag = f'"sha256:{file["sha256"]}"'
    assert desk.http.get(file["href"], headers={"If-None-Match": etag}).status_code == 304
    assert desk.http.get(file["href"], headers={"If-None-Match": '"x"'}).status_code == 200
    same = {"Range": "bytes=0-1", "If-Range": etag}
    assert desk.http.get(file["href"], headers=same).status_code == 206
    changed = {"Range": "bytes=0-1", "If-Range": '"sha256:old"'}
    assert desk.http.get(file["href"], headers=changed).status_code == 200
    problem(desk.http.get(file["href"], headers={"If-Match": '"x"'}), 412, "PRECONDITION_FAILED")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/json", "application/json"),
        ("*/*", "application/json"),
        ("", "application/json"),
        ("text/html", "text/html; charset=utf-8"),
        ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "text/html; charset=utf-8"),
        ("text/csv", "text/csv; charset=utf-8"),
        ("application/junit+xml", "application/xml"),
        ("text/markdown", "text/markdown; charset=utf-8"),
        ("application/vnd.model-explorer+json", "application/vnd.model-explorer+json"),
        ("image/png, text/csv;q=0.1", "text/csv; charset=utf-8"),
    ],
)
def test_the_report_by_accept(desk: Desk, job: str, accept: str, kind: str) -> None:
    answer = desk.http.get(f"/v1/jobs/{job}/report", headers={"Accept": accept})
    assert answer.status_code == 200, answer.text
    assert (answer.headers["content-type"], answer.headers["vary"]) == (kind, "Accept")


def test_the_html_report_may_do_nothing(desk: Desk, job: str) -> None:
    answer = desk.http.get(f"/v1/jobs/{job}/report?format=html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "sandbox" in answer.headers["content-security-policy"]


def test_kinds_of_report_we_do_not_have(desk: Desk, job: str) -> None:
    problem(desk.http.get(f"/v1/jobs/{job}/report", headers={"Accept": "image/png"}), 415, "UNSUPPORTED_MEDIA_TYPE")
    assert desk.http.get(f"/v1/jobs/{job}/report?format=pdf").status_code == 422


def test_layers_page_by_page_sorted(desk: Desk, job: str) -> None:
    seen: list[str] = []
    token: str | None = ""
    while token is not None:
        query = {"sort": "-rel_l2_error", "page_size": 10, **({"page_token": token} if token else {})}
        page = desk.http.get(f"/v1/jobs/{job}/layers", params=query).json()
        seen += [one["value"] for one in page["items"]]
        token = page["next_page_token"]
    assert seen == [f"value_{n}" for n in reversed(range(25))]
    report = desk.http.get(f"/v1/jobs/{job}/report").json()
    assert desk.http.get(f"/v1/jobs/{job}/layers").json()["items"] == report["layers"]


def test_layers_filtered(desk: Desk, job: str) -> None:
    page = desk.http.get(f"/v1/jobs/{job}/layers?op_type=MatMul&node=_1").json()
    assert [one["node"] for one in page["items"]] == [f"node_{n}" for n in (1, 11, 13, 15, 17, 19)]


@pytest.mark.parametrize("query", ["sort=body", "sort=--node", "page_token=x", "page_size=9999"])
def test_layers_that_make_no_sense(desk: Desk, job: str, query: str) -> None:
    problem(desk.http.get(f"/v1/jobs/{job}/layers?{query}"), 422, "INVALID_REQUEST")


def test_the_log_of_every_attempt(desk: Desk, job: str) -> None:
    answer = desk.http.get(f"/v1/jobs/{job}/logs")
    assert answer.text == "--- attempt 1: SUCCEEDED\nengine says hello\n"
    tail = desk.http.get(f"/v1/jobs/{job}/logs", headers={"Range": "bytes=25-"})
    assert (tail.status_code, tail.text) == (206, "engine says hello\n")
    problem(desk.http.get(f"/v1/jobs/{job}/logs", headers={"Range": "bytes=999-"}), 416, "RANGE_NOT_SATISFIABLE")


def test_the_log_shows_no_paths_and_no_control_characters(desk: Desk) -> None:
    place = str(desk.service.settings.scratch_dir.absolute())
    job = desk.finished(["stderr", f"\x1b]8;;evil\x07 {place}"])
    text = desk.http.get(f"/v1/jobs/{job}/logs").text
    assert "\x1b" not in text
    assert "\x07" not in text


def test_jobs_without_files(desk: Desk) -> None:
    waiting = desk.submit()["id"]
    failed = desk.finished(["error", "INPUT_MISMATCH"])
    for job in (waiting, failed):
        for what in ("artifacts", "report", "layers", "artifacts/report.json"):
            problem(desk.http.get(f"/v1/jobs/{job}/{what}"), 409, "CONFLICT")


def test_expired_files_are_gone(desk: Desk, job: str) -> None:
    from sqlalchemy import update

    from worker.database.tables import jobs
    from worker.retention import clear

    with desk.service.database.write() as connection:
        connection.execute(update(jobs).values(artifacts_until=0.0))
    problem(desk.http.get(f"/v1/jobs/{job}/report"), 410, "GONE")
    clear(desk.service.database, desk.service.storage, desk.service.settings)
    problem(desk.http.get(f"/v1/jobs/{job}/report"), 410, "GONE")
    assert desk.http.get(f"/v1/jobs/{job}").json()["state"] == "SUCCEEDED"


def test_names_that_are_no_file(desk: Desk, job: str) -> None:
    for name in ("nope", "..%2Freport.json", "%2Fetc%2Fpasswd"):
        assert desk.http.get(f"/v1/jobs/{job}/artifacts/{name}").status_code == 404
