"""Requests made to break something: every answer is a problem with a documented code, none says 5xx."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from api.pages import unpack
from tests.api.conftest import Desk, MakeDesk, Result, problem
from tests.service_kit import npz, script
from tests.worker.conftest import postgres_url, wipe
from worker.problems import PROBLEMS

__all__ = ["postgres_url"]
SUPERSCRIPT_TWO = b"\xb2"
"""A digit to ``str.isdigit`` and no number to ``int``."""
JSON = {"content-type": "application/json"}


def sound(answer: Result) -> Result:
    """The answer, which is a success or a documented problem."""
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        if answer.request.method != "HEAD":
            assert answer.json()["code"] in PROBLEMS
    return answer


def token(*position: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode().rstrip("=")


@pytest.fixture
def job(desk: Desk) -> str:
    return desk.finished()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_desk(request: pytest.FixtureRequest, make_desk: MakeDesk) -> Callable[..., Desk]:
    """Makes a desk with the settings given, over a database of each kind."""
    changes: dict[str, Any] = {}
    if request.param == "postgresql":
        changes["database_url"] = request.getfixturevalue("postgres_url")
        wipe(changes["database_url"])
    return lambda **more: make_desk(**changes, **more)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/inputs", "/v1/jobs", "/v1/webhooks", "/v1/keys", "/v1/uploads"])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b'"x"', b"1", b"[" * 100_000, b'{"a":' * 50_000, b'{"\\ud800": 1}', b'{"\xff": 1}',
        b'{"size": ' + b"9" * 5000 + b"}", b'{"size": 1e999}', b'{"size": NaN}', b'{"name": "\\u0000"}',
        b'{"entry": "\\ud800", "name": "\\ud800", "url": "\\ud800", "model": "\\ud800", "filename": "\\ud800"}',
        b"\xef\xbb\xbf{}", '{"size": 1}'.encode("utf-16"),
    ],
    ids=range(16),
)  # fmt: skip
def test_odd_json(desk: Desk, path: str, body: bytes) -> None:
    assert sound(desk.http.post(path, content=body, headers=JSON)).status_code in (400, 422)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/inputs", "/v1/jobs", "/v1/webhooks", "/v1/uploads"])
@pytest.mark.parametrize(
    "kind",
    [
        b"text/plain", b"multipart/form-data", b"multipart/form-data; boundary=", b"application/x-www-form-urlencoded",
        b"application/json; charset=utf-16", b"\xe9", b"/", b"",
    ],
)  # fmt: skip
def test_odd_content_types(desk: Desk, path: str, kind: bytes) -> None:
    answer = sound(desk.http.post(path, content=b'{"nothing": 1}', headers={b"content-type": kind}))
    assert answer.status_code in (400, 415, 422)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/inputs", "/v1/webhooks", "/v1/uploads", "/v1/jobs/x/cancel"])
def test_calling_a_body_a_form_does_not_free_it_of_its_limit(make_desk: MakeDesk, path: str) -> None:
    desk = make_desk(max_json_bytes=2048)
    headers = {"content-type": "multipart/form-data; boundary=b"}
    answer = sound(desk.http.post(path, content=b"x" * 5000, headers=headers))
    assert answer.status_code == (404 if path.endswith("cancel") else 413), "what is not read needs no limit"


@pytest.mark.parametrize(
    "position",
    [
        (1e400, "x"), (float("nan"), "x"), (10**400, "x"), (2**70, "x"), (True, "x"), (1, "\ud800"), (1, "a\0"),
        (None, "x"), ("x", 1), (1,), (1, "x", 1),
    ],
)  # fmt: skip
def test_page_tokens_that_no_database_takes(desk: Desk, job: str, position: tuple[Any, ...]) -> None:
    for path in ("/v1/jobs", "/v1/models", "/v1/inputs", "/v1/webhooks", f"/v1/jobs/{job}/layers?sort=node"):
        answer = desk.http.get(
            path, params={"page_token": token(*position)} | ({"sort": "node"} if "?" in path else {})
        )
        if not (path.endswith("node") and position in (("x", 1), (None, "x"))):
            problem(answer, 422, "INVALID_REQUEST")
        sound(answer)


def test_page_tokens_of_layers(desk: Desk, job: str) -> None:
    for position in ((10**30, 10**30), (0.5, 2**64), ("x", 0), (0.5, True), ([1], 1)):
        query = {"page_token": token(*position), "sort": "rel_l2_error"}
        problem(desk.http.get(f"/v1/jobs/{job}/layers", params=query), 422, "INVALID_REQUEST")
    assert unpack(token("a name with a \n", 3), (str,), (int,)) == ["a name with a \n", 3]


@pytest.mark.parametrize("text", [b"filename \xff", b"a b c", b"filename =", SUPERSCRIPT_TWO])
def test_upload_metadata_that_is_no_base64(desk: Desk, text: bytes) -> None:
    answer = sound(desk.http.post("/v1/uploads", headers={b"Upload-Length": b"3", b"Upload-Metadata": text}))
    assert answer.status_code in (201, 400)


@pytest.mark.parametrize(
    "headers",
    [
        {b"Upload-Offset": SUPERSCRIPT_TWO}, {b"Upload-Checksum": b"sha256 \xff"}, {b"Upload-Checksum": b"md5 aaaa"},
        {b"Tus-Resumable": b"\xff"}, {b"Upload-Offset": b"1e3"}, {b"Upload-Checksum": b"sha256"},
    ],
)  # fmt: skip
def test_odd_headers_of_a_chunk(desk: Desk, headers: dict[bytes, bytes]) -> None:
    place = desk.http.post("/v1/uploads", json={"size": 4}).headers["location"]
    more = {b"Content-Type": b"application/offset+octet-stream", b"Upload-Offset": b"0", **headers}
    assert sound(desk.http.patch(place, content=b"abcd", headers=more)).status_code in (400, 412)
    assert desk.http.head(place).headers["upload-offset"] == "0"


def test_numbers_that_only_look_like_numbers(desk: Desk, job: str) -> None:
    odd = {b"Last-Event-ID": SUPERSCRIPT_TWO, b"Range": b"bytes=" + SUPERSCRIPT_TWO + b"-", b"Prefer": b"wait=\xb2"}
    for path in ("events", "logs", "report", "artifacts/m-fp16.onnx"):
        sound(desk.http.get(f"/v1/jobs/{job}/{path}", headers=odd))
    problem(desk.http.get(f"/v1/jobs/{job}/events", headers={b"Last-Event-ID": b"-1"}), 400, "MALFORMED")


class TestForms:
    FILES: Sequence[tuple[bytes, bytes]] = (
        (b'name="model"; filename="m.onnx"', script()),
        (b'name="samples"; filename="b.npz"', npz()),
    )

    def send(self, desk: Desk, *parts: tuple[bytes, bytes], charset: str = "") -> Result:
        lines = [
            b"--b\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts
        ]
        kind = "multipart/form-data; boundary=b" + (f"; charset={charset}" if charset else "")
        return sound(desk.http.post("/v1/jobs", content=b"".join(lines) + b"--b--\r\n", headers={"content-type": kind}))

    @pytest.mark.parametrize("charset", ["unicode_escape", "raw_unicode_escape", "utf-7", "idna", "punycode", "nope"])
    def test_a_name_that_is_no_text(self, desk: Desk, charset: str) -> None:
        named = (b'name="model"; filename="\\ud800.onnx"', script())
        answer = self.send(desk, named, self.FILES[1], charset=charset)
        assert answer.status_code in (400, 422)

    @pytest.mark.parametrize(
        "name",
        [b"../../m.onnx", b"/etc/m.onnx", b"a\\\\b.onnx", b"..", b"C:m.onnx", b"a" * 300 + b".onnx",
         b"a/" * 600 + b"m.data", b"m.onnx/x"],
    )  # fmt: skip
    def test_a_name_that_is_no_place(self, desk: Desk, name: bytes) -> None:
        extra = (b'name="model"; filename="' + name + b'"', b"x")
        body = problem(self.send(desk, *self.FILES, extra), 422, "INVALID_REQUEST")
        assert body["errors"][0]["code"] == "BAD_PATH"

    def test_names_of_other_scripts_are_names(self, desk: Desk) -> None:
        name = "模型 #1?%.onnx"
        answer = self.send(desk, (f'name="model"; filename="{name}"'.encode(), script()), self.FILES[1])
        made = answer.json()
        assert (answer.status_code, made["name"]) == (202, name)
        desk.run(made["id"])
        files = desk.http.get(f"/v1/jobs/{made['id']}/artifacts").json()["items"]
        for one in files:
            content = desk.http.get(one["href"])
            assert hashlib.sha256(content.content).hexdigest() == one["sha256"], one["href"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [("options", b"[]"), ("deadline_s", b"NaN"), ("labels", b'{"a": "\\ud800"}'), ("seed", b"1e999"),
         ("dynamic", b"[" * 10_000), ("reuse", b"\0"), ("model", b"x"), ("webhook", b'{"url": "https://x"}')],
    )  # fmt: skip
    def test_odd_fields(self, desk: Desk, name: str, value: bytes) -> None:
        problem(self.send(desk, *self.FILES, (f'name="{name}"'.encode(), value)), 422, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "url",
    [
        "https://[::ffff:127.0.0.1]/", "https://[::127.0.0.1]/", "https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/",
        "https://127.1/", "https://0x7f000001/", "https://2130706433/", "https://017700000001/", "https://@example.com/",
        "https://a..b/", "https://" + "a" * 64 + ".com/", "https://ex%61mple.com/", "https://[fe80::1%25eth0]/",
        "https://a\\@127.0.0.1/", "https://example.com:0/", "https://[::1/", "https://..",
    ],
)  # fmt: skip
def test_receivers_in_disguise(desk: Desk, url: str) -> None:
    problem(desk.http.post("/v1/webhooks", json={"url": url}), 422, "RECEIVER_REFUSED")


def test_a_signing_key_that_is_no_base64(desk: Desk) -> None:
    body = {
        "model": "mdl_x",
        "inputs": ["inp_x"],
        "webhook": {"url": "https://example.com/", "secret": "whsec_" + "A" * 25},
    }
    problem(desk.http.post("/v1/jobs", json=body), 422, "INVALID_REQUEST")


def test_an_event_stream_from_the_future_ends_with_the_job(make_desk: MakeDesk) -> None:
    desk = make_desk(sse_heartbeat_s=0.05)
    job = str(desk.submit()["id"])

    def lines() -> Iterator[str]:
        with desk.http.stream("GET", f"/v1/jobs/{job}/events", headers={"Last-Event-ID": "999999999"}) as answer:
            yield from answer.iter_lines()

    with ThreadPoolExecutor(2) as pool:
        future, past = pool.submit(lambda: list(lines())), pool.submit(desk.http.get, f"/v1/jobs/{job}/events")
        desk.run(job)
        assert future.result(30)[0] == "retry: 1000"
        assert past.result(30).text.count("id: ") >= 3


def side_by_side(count: int, act: Callable[[int], Result]) -> list[Result]:
    with ThreadPoolExecutor(count) as pool:
        return [sound(one) for one in pool.map(act, range(count))]


def test_writers_of_one_upload_race(any_desk: Callable[..., Desk]) -> None:
    """F22: whoever comes first writes; nobody is told that the bytes are gone."""
    desk = any_desk()
    content = b"x" * 100_000
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    for number in range(5):
        place = desk.http.post("/v1/uploads", json={"size": len(content) + number}).headers["location"]
        whole = content + b"y" * number

        def write(_: int, place: str = place, whole: bytes = whole) -> Result:
            return desk.http.patch(place, content=whole, headers=headers)

        codes = {one.status_code for one in side_by_side(6, write)}
        assert 204 in codes
        assert codes <= {204, 409, 423}, codes
        shown = desk.http.get(place).json()
        assert shown["blob"] == "sha256:" + hashlib.sha256(whole).hexdigest()


def test_the_quota_of_jobs_holds_in_a_race(any_desk: Callable[..., Desk]) -> None:
    desk = any_desk(quota_open_jobs=3)
    body = {"model": desk.make_model(), "inputs": [desk.make_input()]}
    answers = side_by_side(10, lambda _: desk.http.post("/v1/jobs", json=body))
    assert sorted(one.status_code for one in answers) == [202] * 3 + [429] * 7
    problem(answers[[one.status_code for one in answers].index(429)], 429, "QUOTA_JOBS")


def test_the_quota_of_bytes_holds_in_a_race(any_desk: Callable[..., Desk]) -> None:
    desk = any_desk(quota_bytes=350)
    contents = [bytes([number]) * 100 for number in range(10)]

    def put(number: int) -> Result:
        digest = hashlib.sha256(contents[number]).hexdigest()
        return desk.http.put(f"/v1/blobs/sha256:{digest}", content=contents[number])

    codes = [one.status_code for one in side_by_side(10, put)]
    assert sorted(codes) == [201] * 3 + [413] * 7
    assert sorted({put(number).status_code for number, code in enumerate(codes) if code == 201}) == [201], (
        "held already"
    )
    kept = [path for path in (desk.service.settings.store_dir / "blobs").rglob("*") if path.is_file()]
    assert len(kept) == 3, "what was refused leaves no file"
    assert list(desk.service.settings.uploads_dir.iterdir()) == []


def test_announced_bytes_count_once(any_desk: Callable[..., Desk]) -> None:
    desk = any_desk(quota_bytes=150)
    place = desk.http.post("/v1/uploads", json={"size": 100}).headers["location"]
    problem(desk.http.post("/v1/uploads", json={"size": 100}), 413, "QUOTA_BYTES")
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    assert desk.http.patch(place, content=b"x" * 100, headers=headers).status_code == 204


def test_cancel_retry_and_delete_race(any_desk: Callable[..., Desk]) -> None:
    desk = any_desk()
    job = str(desk.submit()["id"])
    acts = (("POST", "/cancel"), ("POST", "/retry"), ("DELETE", ""), ("POST", "/cancel"), ("GET", "?wait=0.1"))
    answers = side_by_side(20, lambda n: desk.http.request(acts[n % 5][0], f"/v1/jobs/{job}{acts[n % 5][1]}"))
    assert {one.status_code for one in answers} <= {200, 202, 204, 404, 409}
    problem(desk.http.get(f"/v1/jobs/{job}"), 404, "NOT_FOUND") if any(
        one.status_code == 204 for one in answers
    ) else None


def test_an_upload_that_expires_under_its_writer_is_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from api.routes import uploads

    place = desk.http.post("/v1/uploads", json={"size": 4}).headers["location"]
    real = uploads.take_in

    def expiring(*arguments: Any, **named: Any) -> str:
        assert desk.http.app is not None
        made = real(*arguments, **named)
        with desk.service.database.write() as connection:
            connection.execute(uploads.delete(uploads.uploads))
        return made

    monkeypatch.setattr(uploads, "take_in", expiring)
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    body = problem(desk.http.patch(place, content=b"abcd", headers=headers), 410, "GONE")
    assert "expired while its last bytes came" in body["detail"]
    assert list(desk.service.settings.uploads_dir.iterdir()) == []


def test_one_idempotency_key_for_many_things(desk: Desk, job: str) -> None:
    key = {"Idempotency-Key": "same"}
    assert sound(desk.http.post(f"/v1/jobs/{job}/retry", headers=key)).status_code == 202
    for path, body in (
        (f"/v1/jobs/{job}/cancel", None),
        ("/v1/uploads", {"size": 1}),
        ("/v1/webhooks", {"url": "https://e.com"}),
    ):
        problem(desk.http.post(path, json=body, headers=key), 422, "IDEMPOTENCY_REUSED")
    again = desk.http.post(f"/v1/jobs/{job}/retry", headers=key)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (202, "true")
    for odd in (b"\xff", b"", b"x" * 300, b"a b"):
        answer = sound(desk.http.post(f"/v1/jobs/{job}/retry", headers={b"Idempotency-Key": odd}))
        assert answer.status_code == 400, odd
