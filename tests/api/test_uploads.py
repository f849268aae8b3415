"""Resumable uploads: every byte counted once, offsets that never lie."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

import pytest

from tests.api.conftest import Desk, MakeDesk, problem
from tests.service_kit import can_mount, small_disk

CONTENT = os.urandom(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
OCTETS = {"Content-Type": "application/offset+octet-stream"}


def announce(desk: Desk, size: int = len(CONTENT), **fields: Any) -> str:
    answer = desk.http.post("/v1/uploads", json={"size": size, **fields})
    assert answer.status_code == 201, answer.text
    assert answer.headers["upload-offset"] == "0"
    assert "GMT" in answer.headers["upload-expires"]
    return str(answer.headers["location"])


def patch(desk: Desk, place: str, offset: int, content: bytes, **headers: str) -> Any:
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    return desk.http.patch(place, content=content, headers={**OCTETS, "Upload-Offset": str(offset), **extra})


def offset_of(desk: Desk, place: str) -> int:
    answer = desk.http.head(place)
    assert answer.status_code == 204
    assert answer.headers["cache-control"] == "no-store"
    return int(answer.headers["upload-offset"])


def test_a_file_in_pieces_becomes_a_blob(desk: Desk) -> None:
    place = announce(desk, sha256=DIGEST, filename="weights.bin")
    for start in range(0, len(CONTENT), 100_000):
        assert offset_of(desk, place) == start
        answer = patch(desk, place, start, CONTENT[start : start + 100_000])
        assert answer.status_code == 204, answer.text
        assert answer.headers["upload-offset"] == str(start + 100_000)
    assert answer.headers["upload-complete"] == "?1"
    assert answer.headers["content-location"] == f"/v1/blobs/sha256:{DIGEST}"
    assert desk.http.head(f"/v1/blobs/sha256:{DIGEST}").headers["blob-size"] == str(len(CONTENT))
    assert desk.http.get(place).json()["blob"] == f"sha256:{DIGEST}"
    again = desk.http.post(f"{place}/complete")
    assert (again.status_code, again.json()["blob"]) == (201, f"sha256:{DIGEST}")
    assert list(desk.service.settings.uploads_dir.iterdir()) == []


def test_known_content_is_not_sent_again(desk: Desk) -> None:
    desk.put_blob(CONTENT)
    answer = desk.http.post("/v1/uploads", json={"size": len(CONTENT), "sha256": DIGEST})
    assert (answer.status_code, answer.json()) == (200, {"blob": f"sha256:{DIGEST}", "size": len(CONTENT)})


def test_an_empty_file_is_a_file(desk: Desk) -> None:
    place = announce(desk, 0)
    answer = desk.http.post(f"{place}/complete")
    assert answer.json() == {"blob": "sha256:" + hashlib.sha256(b"").hexdigest(), "size": 0}


def test_the_words_of_tus(desk: Desk) -> None:
    options = desk.http.options("/v1/uploads")
    assert options.headers["tus-extension"] == "creation,expiration,termination,checksum"
    name = base64.b64encode(b"w.bin").decode()
    digest = base64.b64encode(DIGEST.encode()).decode()
    answer = desk.http.post(
        "/v1/uploads",
        headers={
            "Tus-Resumable": "1.0.0", "Upload-Length": str(len(CONTENT)),
            "Upload-Metadata": f"filename {name},sha256 {digest}",
        },
    )  # fmt: skip
    assert (answer.status_code, answer.json()["filename"]) == (201, "w.bin")
    assert patch(desk, answer.headers["location"], 0, CONTENT, Tus_Resumable="1.0.0").status_code == 204
    refused = desk.http.head(answer.headers["location"], headers={"Tus-Resumable": "0.2.2"})
    assert (refused.status_code, refused.headers["tus-version"]) == (412, "1.0.0")


def test_the_media_type_of_the_draft_is_taken_too(desk: Desk) -> None:
    place = announce(desk, 3)
    headers = {"Content-Type": "application/partial-upload", "Upload-Offset": "0"}
    assert desk.http.patch(place, content=b"abc", headers=headers).status_code == 204
    wrong = desk.http.patch(announce(desk, 3), content=b"abc", headers={"Upload-Offset": "0", "Content-Type": "text/x"})
    problem(wrong, 415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize("offset", [0, 99_999, 100_001, 10**9])
def test_a_wrong_offset_writes_nothing(desk: Desk, offset: int) -> None:
    place = announce(desk)
    patch(desk, place, 0, CONTENT[:100_000])
    body = problem(patch(desk, place, offset, b"x" * 10), 409, "OFFSET_MISMATCH")
    assert (body["limit"], body["actual"], body["retryable"]) == (100_000, offset, True)
    assert offset_of(desk, place) == 100_000


def test_bytes_beyond_the_announced_size_are_refused(desk: Desk) -> None:
    place = announce(desk, 10)
    problem(patch(desk, place, 0, b"x" * 11), 413, "TOO_LARGE")
    assert offset_of(desk, place) == 0


def test_a_wrong_digest_discards_the_upload(desk: Desk) -> None:
    place = announce(desk, 3, sha256="0" * 64)
    body = problem(patch(desk, place, 0, b"abc"), 422, "DIGEST_MISMATCH")
    assert hashlib.sha256(b"abc").hexdigest() in body["detail"]
    assert desk.http.head(place).status_code == 404
    assert list(desk.service.settings.uploads_dir.iterdir()) == []


@pytest.mark.parametrize("name", ["Upload-Checksum", "Content-Digest"])
def test_a_chunk_with_a_wrong_checksum_is_taken_back(desk: Desk, name: str) -> None:
    def checksum(content: bytes) -> str:
        text = base64.b64encode(hashlib.sha256(content).digest()).decode()
        return f"sha256 {text}" if name == "Upload-Checksum" else f"sha-256=:{text}:"

    place = announce(desk)
    first, second = CONTENT[:200_000], CONTENT[200_000:]
    assert patch(desk, place, 0, first, **{name: checksum(first)}).status_code == 204
    problem(patch(desk, place, 200_000, second, **{name: checksum(b"other")}), 460, "CHECKSUM_MISMATCH")
    assert offset_of(desk, place) == 200_000
    assert patch(desk, place, 200_000, second, **{name: checksum(second)}).status_code == 204
    assert desk.http.head(f"/v1/blobs/sha256:{DIGEST}").status_code == 200


def test_a_second_writer_is_locked_out(desk: Desk) -> None:
    from api.intake import exclusive

    place = announce(desk)
    with exclusive(desk.service.settings.uploads_dir / place.rsplit("/", 1)[1]):
        answer = patch(desk, place, 0, CONTENT)
        assert problem(answer, 423, "UPLOAD_LOCKED")["retryable"]
        assert answer.headers["retry-after"] == "1"
        assert offset_of(desk, place) == 0, "looking is allowed"
    assert patch(desk, place, 0, CONTENT).status_code == 204


def test_bytes_on_disk_are_the_offset_whatever_a_record_says(desk: Desk) -> None:
    """What a killed server leaves: more bytes in the file than anybody answered for."""
    place = announce(desk, sha256=DIGEST)
    (desk.service.settings.uploads_dir / place.rsplit("/", 1)[1]).write_bytes(CONTENT[:123_456])
    assert offset_of(desk, place) == 123_456
    assert patch(desk, place, 123_456, CONTENT[123_456:]).status_code == 204


def test_a_full_upload_that_was_never_completed_is_completed(desk: Desk) -> None:
    place = announce(desk, sha256=DIGEST)
    (desk.service.settings.uploads_dir / place.rsplit("/", 1)[1]).write_bytes(CONTENT)
    assert desk.http.post(f"{place}/complete").status_code == 201
    assert desk.http.head(f"/v1/blobs/sha256:{DIGEST}").status_code == 200


def test_completing_too_early_tells_the_offset(desk: Desk) -> None:
    place = announce(desk)
    patch(desk, place, 0, CONTENT[:5])
    answer = desk.http.post(f"{place}/complete")
    problem(answer, 409, "OFFSET_MISMATCH")
    assert answer.headers["upload-offset"] == "5"


def test_an_upload_can_be_dropped(desk: Desk) -> None:
    place = announce(desk)
    assert desk.http.delete(place).status_code == 204
    problem(desk.http.get(place), 404, "NOT_FOUND")
    assert list(desk.service.settings.uploads_dir.iterdir()) == []


def test_an_expired_upload_is_gone(make_desk: MakeDesk) -> None:
    desk = make_desk(keep_uploads_s=0.01)
    answer = desk.http.post("/v1/uploads", json={"size": 10})
    import time

    time.sleep(0.05)
    problem(desk.http.get(answer.headers["location"]), 410, "GONE")
    problem(patch(desk, answer.headers["location"], 0, b"x"), 410, "GONE")


def test_sizes_are_refused_before_any_byte(make_desk: MakeDesk) -> None:
    desk = make_desk(max_upload_bytes=1000, quota_bytes=1500)
    body = problem(desk.http.post("/v1/uploads", json={"size": 1001}), 413, "TOO_LARGE")
    assert (body["limit"], body["actual"]) == (1000, 1001)
    assert desk.http.post("/v1/uploads", json={"size": 900}).status_code == 201
    body = problem(desk.http.post("/v1/uploads", json={"size": 900}), 413, "QUOTA_BYTES")
    assert (body["limit"], body["actual"]) == (1500, 1800)


def test_a_disk_without_room_is_507(make_desk: MakeDesk) -> None:
    desk = make_desk(disk_reserve_bytes=2**60)
    problem(desk.http.post("/v1/uploads", json={"size": 10}), 507, "STORAGE_FULL")


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
def test_a_disk_that_fills_up_keeps_what_fitted(make_desk: MakeDesk) -> None:
    with small_disk("4m") as full:
        desk = make_desk()
        folder = desk.service.settings.uploads_dir
        folder.rmdir()
        folder.symlink_to(full)
        place = announce(desk, 3 * 2**20)
        (full / "filler").write_bytes(b"x" * (2 * 2**20))
        problem(patch(desk, place, 0, b"y" * (3 * 2**20)), 507, "STORAGE_FULL")
        stored = offset_of(desk, place)
        assert 0 <= stored <= 2 * 2**20
        (full / "filler").unlink()
        assert patch(desk, place, stored, b"y" * (3 * 2**20 - stored)).status_code == 204, "room again: it goes on"


@pytest.mark.parametrize(
    "body", [{"size": -1}, {"size": 2**63}, {"size": "x"}, {}, {"size": 1, "sha256": "xyz"}, {"size": 1, "sise": 2}]
)
def test_announcements_that_make_no_sense(desk: Desk, body: dict[str, Any]) -> None:
    found = problem(desk.http.post("/v1/uploads", json=body), 422, "INVALID_REQUEST")
    assert found["errors"][0]["pointer"].startswith("/")


@pytest.mark.parametrize("length", ["-1", "abc", "9" * 30])
def test_tus_lengths_that_make_no_sense(desk: Desk, length: str) -> None:
    problem(desk.http.post("/v1/uploads", headers={"Upload-Length": length}), 422, "INVALID_REQUEST")


@pytest.mark.parametrize("offset", ["", "-1", "1.5", "9" * 30])
def test_offsets_that_make_no_sense(desk: Desk, offset: str) -> None:
    answer = desk.http.patch(announce(desk), content=b"x", headers={**OCTETS, "Upload-Offset": offset})
    problem(answer, 400, "MALFORMED")


class TestOneShot:
    def test_a_body_that_is_not_its_digest_is_refused(self, desk: Desk) -> None:
        problem(desk.http.put(f"/v1/blobs/sha256:{'0' * 64}", content=b"x"), 422, "DIGEST_MISMATCH")
        assert desk.http.head(f"/v1/blobs/sha256:{'0' * 64}").status_code == 404
        assert list(desk.service.settings.uploads_dir.iterdir()) == []

    def test_a_body_that_is_too_long_is_refused(self, make_desk: MakeDesk) -> None:
        desk = make_desk(max_upload_bytes=100)
        problem(desk.http.put(f"/v1/blobs/sha256:{DIGEST}", content=CONTENT), 413, "TOO_LARGE")
        assert list(desk.service.settings.uploads_dir.iterdir()) == []

    def test_a_body_without_length_is_bounded_too(self, make_desk: MakeDesk) -> None:
        desk = make_desk(max_upload_bytes=100_000)
        pieces = (CONTENT[n : n + 1000] for n in range(0, len(CONTENT), 1000))
        problem(desk.http.put(f"/v1/blobs/sha256:{DIGEST}", content=pieces), 413, "TOO_LARGE")
        assert list(desk.service.settings.uploads_dir.iterdir()) == []

    def test_names_that_are_no_digest(self, desk: Desk) -> None:
        assert desk.http.put("/v1/blobs/sha256:xyz", content=b"x").status_code == 422
        assert desk.http.put(f"/v1/blobs/sha256:{DIGEST.upper()}", content=b"x").status_code == 422
