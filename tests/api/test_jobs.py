"""Jobs over HTTP: submit, follow, cancel, retry, forget; and the same request twice."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.conftest import Desk, MakeDesk, problem
from tests.service_kit import npz, script, wait_until


def test_a_job_from_submission_to_verdict(desk: Desk) -> None:
    answer = desk.http.post("/v1/jobs", json={"model": desk.make_model(), "inputs": [desk.make_input()]})
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert answer.headers["retry-after"] == "1"
    assert (job["state"], job["verdict"], job["options"]["to"]) == ("QUEUED", None, "fp16")
    assert desk.run(job["id"]) == "succeeded"
    done = desk.http.get(f"/v1/jobs/{job['id']}")
    body = done.json()
    assert (body["state"], body["verdict"]) == ("SUCCEEDED", "pass")
    assert "retry-after" not in done.headers
    assert body["queue_seconds"] >= 0
    assert body["run_seconds"] > 0
    assert body["attempts"][0]["outcome"] == "SUCCEEDED"


def test_a_failed_job_carries_a_problem_document(desk: Desk) -> None:
    job = desk.finished(["node", "head/7"], ["error", "INPUT_MISMATCH"])
    error = desk.http.get(f"/v1/jobs/{job}").json()["error"]
    assert (error["code"], error["node"], error["stage"], error["exit_status"]) == (
        "INPUT_MISMATCH", "head/7", "compare", 2,
    )  # fmt: skip
    assert error["attempts"] == ["INPUT_MISMATCH at compare"]
    assert desk.http.get(error["type"]).json()["code"] == "INPUT_MISMATCH"


def test_everything_in_one_request(desk: Desk) -> None:
    answer = desk.http.post(
        "/v1/jobs",
        files=[("model", ("m.onnx", script())), ("model", ("m.data", b"weights")), ("samples", ("b.npz", npz()))],
        data={
            "to": "bf16",
            "max_rel_l2": "0.01",
            "keep_fp32": '["a*"]',
            "labels": '{"branch": "main"}',
            "name": "my job",
        },
    )
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert (body["name"], body["labels"], body["model"]["entry"]) == ("my job", {"branch": "main"}, "m.onnx")
    wanted = {"to": "bf16", "max_rel_l2": 0.01, "keep_fp32": ["a*"]}
    assert {name: body["options"][name] for name in wanted} == wanted
    assert desk.run(body["id"]) == "succeeded"


@pytest.mark.parametrize(
    ("files", "fields", "status", "code"),
    [
        ([("samples", ("b.npz", npz()))], {}, 422, "INVALID_REQUEST"),
        ([("model", ("m.onnx", b"{}"))], {}, 422, "INVALID_REQUEST"),
        ([("model", ("m.onnx", b"{}"))], {"too": "fp16", "validate": "false"}, 422, "INVALID_REQUEST"),
        ([("model", ("m.onnx", b"{}"))], {"options": "[1]"}, 422, "INVALID_REQUEST"),
        ([("model", ("m.onnx", b"{}"))], {"labels": "{"}, 422, "INVALID_REQUEST"),
        ([("model", ("m.exe", b"{}"))], {"validate": "false"}, 415, "UNSUPPORTED_MEDIA_TYPE"),
        ([("model", ("../m.onnx", b"{}"))], {"validate": "false"}, 422, "INVALID_REQUEST"),
        ([("model", ("m.onnx", b"{}")), ("samples", ("b.txt", b"1"))], {}, 415, "UNSUPPORTED_MEDIA_TYPE"),
    ],
)
def test_forms_that_make_no_sense(desk: Desk, files: Any, fields: Any, status: int, code: str) -> None:
    problem(desk.http.post("/v1/jobs", files=files, data=fields), status, code)


def test_a_broken_form_is_malformed(desk: Desk) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    problem(desk.http.post("/v1/jobs", content=b"nonsense", headers=headers), 400, "MALFORMED")
    headers = {"Content-Type": "multipart/form-data"}
    problem(desk.http.post("/v1/jobs", content=b"--x", headers=headers), 400, "MALFORMED")


def test_a_large_form_is_sent_to_uploads(make_desk: MakeDesk) -> None:
    desk = make_desk(max_multipart_bytes=1000)
    body = problem(desk.http.post("/v1/jobs", files={"model": ("m.onnx", b"x" * 2000)}), 413, "TOO_LARGE")
    assert "uploads" in body["detail"]


def test_without_a_batch_only_without_validation(desk: Desk) -> None:
    model = desk.make_model()
    problem(desk.http.post("/v1/jobs", json={"model": model}), 422, "INVALID_REQUEST")
    answer = desk.http.post("/v1/jobs", json={"model": model, "options": {"validate": False}})
    assert answer.status_code == 202


def test_references_have_to_exist(desk: Desk) -> None:
    problem(desk.http.post("/v1/jobs", json={"model": "mdl_x", "inputs": ["inp_x"]}), 404, "NOT_FOUND")
    problem(desk.http.post("/v1/jobs", json={"model": desk.make_model(), "inputs": ["inp_x"]}), 404, "NOT_FOUND")


def test_a_dry_run_starts_nothing(desk: Desk) -> None:
    body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
    answer = desk.http.post("/v1/jobs?validate_only=true", json=body)
    assert (answer.status_code, answer.json()["valid"]) == (200, True)
    assert desk.http.get("/v1/jobs").json()["items"] == []


def test_option_files_go_along(desk: Desk) -> None:
    policy = {"filename": "policy.json", "blob": desk.put_blob(b'{"keep": []}')}
    job = desk.submit(options={"policy": policy, "tolerance": "strict"})
    desk.run(job["id"])
    seen = desk.http.get(f"/v1/jobs/{job['id']}").json()["summary"]["seen_options"]
    assert seen["policy"].endswith("/options/policy-policy.json")
    assert seen["tolerance"] == "strict"


def test_a_recipe_becomes_a_batch(desk: Desk) -> None:
    recipe = {"tensors": {"x": {"shape": [2, 3]}}}
    made = desk.http.post("/v1/inputs", json={"generator": recipe}).json()["id"]
    job = desk.http.post("/v1/jobs", json={"model": desk.make_model(), "inputs": [made]}).json()["id"]
    assert desk.run(job) == "succeeded"


class TestFollowing:
    def test_etag_and_304(self, desk: Desk) -> None:
        job = desk.submit()["id"]
        first = desk.http.get(f"/v1/jobs/{job}")
        same = desk.http.get(f"/v1/jobs/{job}", headers={"If-None-Match": first.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")
        desk.run(job)
        assert desk.http.get(f"/v1/jobs/{job}", headers={"If-None-Match": first.headers["etag"]}).status_code == 200

    def test_a_long_poll_answers_when_the_job_ends(self, desk: Desk) -> None:
        job = desk.submit()["id"]
        thread = threading.Timer(0.3, lambda: desk.run(job))
        thread.start()
        start = time.monotonic()
        body = desk.http.get(f"/v1/jobs/{job}?wait=20").json()
        assert body["state"] == "SUCCEEDED"
        assert 0.2 < time.monotonic() - start < 10
        thread.join()

    def test_a_long_poll_with_etag_answers_at_the_first_news(self, desk: Desk) -> None:
        job = desk.submit(["sleep", 0.5])["id"]
        etag = desk.http.get(f"/v1/jobs/{job}").headers["etag"]
        thread = threading.Timer(0.2, lambda: desk.run(job))
        thread.start()
        body = desk.http.get(f"/v1/jobs/{job}?wait=20", headers={"If-None-Match": etag}).json()
        assert body["state"] == "RUNNING"
        thread.join()

    def test_a_long_poll_ends_without_news(self, desk: Desk) -> None:
        job = desk.submit()["id"]
        start = time.monotonic()
        assert desk.http.get(f"/v1/jobs/{job}?wait=0.3").json()["state"] == "QUEUED"
        assert 0.25 < time.monotonic() - start < 3

    def test_prefer_wait(self, desk: Desk) -> None:
        body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
        late = desk.http.post("/v1/jobs", json=body, headers={"Prefer": "wait=0"})
        assert (late.status_code, late.headers["preference-applied"]) == (202, "wait=0")

        def run_next() -> None:
            found = wait_until(lambda: desk.http.get("/v1/jobs?state=QUEUED&page_size=1").json()["items"])
            desk.run(found[0]["id"])

        desk.run(late.json()["id"])
        thread = threading.Thread(target=run_next)
        thread.start()
        soon = desk.http.post("/v1/jobs", json=body, headers={"Prefer": "respond-async, wait=20"})
        thread.join()
        assert (soon.status_code, soon.json()["state"]) == (200, "SUCCEEDED")

    def test_waits_are_capped(self, make_desk: MakeDesk) -> None:
        desk = make_desk(max_wait_s=0.2)
        body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
        answer = desk.http.post("/v1/jobs", json=body, headers={"Prefer": "wait=500"})
        assert answer.headers["preference-applied"] == "wait=0.2"


class TestEvents:
    def stream(self, desk: Desk, job: str, after: int | None = None) -> list[tuple[int, str, dict[str, Any]]]:
        headers = {"Last-Event-ID": str(after)} if after is not None else {}
        found = []
        fields: dict[str, str] = {}
        with desk.http.stream("GET", f"/v1/jobs/{job}/events", headers=headers) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "id" in fields:
                    found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
                    fields = {}
        return found

    def test_a_finished_jobs_stream_ends_with_its_end(self, desk: Desk) -> None:
        job = desk.finished(["warn", "hm"])
        events = self.stream(desk, job)
        assert [one[0] for one in events] == list(range(1, len(events) + 1))
        assert (events[0][2]["state"], events[-1][2]["state"], events[-1][2]["verdict"]) == (
            "QUEUED", "SUCCEEDED", "pass",
        )  # fmt: skip

    def test_reading_can_be_taken_up_anywhere(self, desk: Desk) -> None:
        job = desk.finished()
        events = self.stream(desk, job)
        for number in range(len(events) + 1):
            assert self.stream(desk, job, number) == events[number:]

    def test_a_deleted_jobs_stream_ends(self, desk: Desk) -> None:
        job = desk.finished()
        last = self.stream(desk, job)[-1][0]
        assert self.stream(desk, job, last) == []

    @pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 20])
    def test_numbers_that_are_none(self, desk: Desk, value: str) -> None:
        answer = desk.http.get(f"/v1/jobs/{desk.submit()['id']}/events", headers={"Last-Event-ID": value})
        problem(answer, 400, "MALFORMED")


class TestCancel:
    def test_a_waiting_job(self, desk: Desk) -> None:
        job = desk.submit()["id"]
        answer = desk.http.post(f"/v1/jobs/{job}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (200, "CANCELED")
        again = desk.http.post(f"/v1/jobs/{job}/cancel")
        assert (again.status_code, again.json()["state"]) == (200, "CANCELED")
        assert desk.run(job) == "skipped"

    def test_a_running_job_takes_two_steps(self, desk: Desk) -> None:
        job = desk.submit(["sleep", 20])["id"]
        thread = threading.Thread(target=lambda: desk.run(job))
        thread.start()
        wait_until(lambda: desk.http.get(f"/v1/jobs/{job}").json()["progress"]["stage"] == "compare")
        answer = desk.http.post(f"/v1/jobs/{job}/cancel")
        assert (answer.status_code, answer.json()["state"]) == (202, "CANCELING")
        thread.join(10)
        assert desk.http.get(f"/v1/jobs/{job}").json()["state"] == "CANCELED"
        problem(desk.http.get(f"/v1/jobs/{job}/artifacts"), 409, "CONFLICT")

    def test_an_ended_job(self, desk: Desk) -> None:
        job = desk.finished()
        problem(desk.http.post(f"/v1/jobs/{job}/cancel"), 409, "CONFLICT")


class TestRetryAndDelete:
    def test_retry_makes_a_new_job(self, desk: Desk) -> None:
        old = desk.finished(["error", "INPUT_MISMATCH"], labels={"a": "b"})
        new = desk.http.post(f"/v1/jobs/{old}/retry")
        assert (new.status_code, new.json()["retry_of"], new.json()["labels"]) == (202, old, {"a": "b"})

    def test_an_open_job_cannot_be_retried_or_deleted(self, desk: Desk) -> None:
        job = desk.submit()["id"]
        problem(desk.http.post(f"/v1/jobs/{job}/retry"), 409, "CONFLICT")
        problem(desk.http.delete(f"/v1/jobs/{job}"), 409, "CONFLICT")

    def test_delete_removes_the_files(self, desk: Desk) -> None:
        job = desk.finished()
        folder = desk.service.settings.store_dir / "artifacts" / job
        assert folder.exists()
        assert desk.http.delete(f"/v1/jobs/{job}").status_code == 204
        assert not folder.exists()
        problem(desk.http.get(f"/v1/jobs/{job}"), 404, "NOT_FOUND")

    def test_a_pinned_job_does_not_expire(self, desk: Desk) -> None:
        job = desk.finished()
        body = desk.http.patch(f"/v1/jobs/{job}", json={"pinned": True}).json()
        assert (body["pinned"], body["expires_at"], body["artifacts_expire_at"]) == (True, None, None)


class TestList:
    def test_filters(self, desk: Desk) -> None:
        good = desk.finished(labels={"branch": "main"})
        bad = desk.finished(["verdict", "fail"], labels={"branch": "dev"})
        waiting = desk.submit()["id"]

        def listed(query: str) -> list[str]:
            return [one["id"] for one in desk.http.get(f"/v1/jobs?{query}").json()["items"]]

        assert listed("") == [waiting, bad, good]
        assert listed("state=QUEUED") == [waiting]
        assert listed("verdict=fail") == [bad]
        assert listed("label=branch=main") == [good]
        assert listed("label=branch=main&label=x=y") == []
        assert listed("created_after=99999999999") == []

    @pytest.mark.parametrize("query", ["state=DONE", "verdict=maybe", "page_size=0", "label=x", "label=a%20b=c"])
    def test_filters_that_make_no_sense(self, desk: Desk, query: str) -> None:
        problem(desk.http.get(f"/v1/jobs?{query}"), 422, "INVALID_REQUEST")


class TestSameRequestTwice:
    def test_the_first_answer_is_given_again(self, desk: Desk) -> None:
        body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
        first = desk.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
        again = desk.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
        assert (again.status_code, again.json()) == (first.status_code, first.json())
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["location"] == first.headers["location"]
        assert len(desk.http.get("/v1/jobs").json()["items"]) == 1

    def test_another_request_with_the_key_is_refused(self, desk: Desk) -> None:
        body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
        desk.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})
        other = desk.http.post("/v1/jobs", json={**body, "name": "x"}, headers={"Idempotency-Key": "k1"})
        problem(other, 422, "IDEMPOTENCY_REUSED")

    def test_a_refused_request_may_be_corrected_under_its_key(self, desk: Desk) -> None:
        body = {"model": desk.make_model(), "inputs": ["inp_missing"]}
        problem(desk.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"}), 404, "NOT_FOUND")
        body["inputs"] = [desk.make_input()]
        assert desk.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"}).status_code == 202

    def test_a_hundred_at_once_make_one_job(self, desk: Desk) -> None:
        """F23."""
        body = {"model": desk.make_model(), "inputs": [desk.make_input()]}

        def post(_: int) -> tuple[int, str]:
            answer = desk.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"})
            return answer.status_code, answer.text

        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(post, range(100)))
        assert len(set(answers)) == 1
        assert answers[0][0] == 202
        assert len(desk.http.get("/v1/jobs").json()["items"]) == 1

    @pytest.mark.parametrize("path", ["models", "inputs", "webhooks"])
    def test_every_kind_of_post_honours_the_key(self, desk: Desk, path: str) -> None:
        bodies = {
            "models": {"files": [{"path": "m.onnx", "blob": desk.put_blob(b"{}")}], "entry": "m.onnx"},
            "inputs": {"blob": desk.put_blob(npz()), "filename": "b.npz"},
            "webhooks": {"url": "https://example.com/x"},
        }
        ids = [
            desk.http.post(f"/v1/{path}", json=bodies[path], headers={"Idempotency-Key": "k"}).json()["id"]
            for _ in range(3)
        ]
        assert len(set(ids)) == 1

    @pytest.mark.parametrize("key", ["", " ", "a" * 256])
    def test_keys_that_are_none(self, desk: Desk, key: str) -> None:
        problem(desk.http.post("/v1/jobs/x/cancel", headers={"Idempotency-Key": key}), 400, "MALFORMED")


def test_an_equal_finished_job_may_be_the_answer(desk: Desk) -> None:
    old = desk.finished()
    body = {"model": desk.make_model(script()), "inputs": [desk.make_input()], "reuse": "allow"}
    answer = desk.http.post("/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["id"]) == (200, old)
    other = desk.http.post("/v1/jobs", json={**body, "options": {"seed": 3}})
    assert other.status_code == 202


def test_open_jobs_have_a_quota(make_desk: MakeDesk) -> None:
    desk = make_desk(quota_open_jobs=2)
    job = desk.submit()["id"]
    desk.submit()
    body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
    answer = desk.http.post("/v1/jobs", json=body)
    found = problem(answer, 429, "QUOTA_JOBS")
    assert (found["limit"], found["actual"], answer.headers["retry-after"]) == (2, 2, "10")
    desk.run(job)
    assert desk.http.post("/v1/jobs", json=body).status_code == 202


def test_deadlines_have_a_limit(desk: Desk) -> None:
    body = {"model": desk.make_model(), "inputs": [desk.make_input()], "deadline_s": 1e7}
    problem(desk.http.post("/v1/jobs", json=body), 422, "INVALID_REQUEST")
