"""Models and batches: manifests that are checked without being parsed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Desk, MakeDesk, problem
from tests.service_kit import npz


def model(desk: Desk, *paths: str, entry: str = "m.onnx", content: bytes = b"{}", **fields: Any) -> Any:
    blob = desk.put_blob(content)
    body = {"files": [{"path": path, "blob": blob} for path in paths], "entry": entry, **fields}
    return desk.http.post("/v1/models", json=body)


def test_a_model_is_a_manifest_of_blobs(desk: Desk) -> None:
    answer = model(desk, "m.onnx", "weights/part.bin")
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert answer.headers["location"] == f"/v1/models/{body['id']}"
    assert (body["format"], [one["path"] for one in body["files"]]) == ("onnx", ["m.onnx", "weights/part.bin"])
    assert desk.http.get(answer.headers["location"]).json() == body
    assert [one["id"] for one in desk.http.get("/v1/models").json()["items"]] == [body["id"]]
    assert desk.http.delete(answer.headers["location"]).status_code == 204
    problem(desk.http.get(answer.headers["location"]), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path",
    ["../s.bin", "sub/../../s.bin", "/etc/passwd", "..\\s", ".", "a/./b", "a//b", "x\x00y", "a" * 201, "C:/x",
     "http://h/x", "a\nb", "dir/"],
)  # fmt: skip
def test_paths_that_leave_the_folder_are_findings(desk: Desk, path: str) -> None:
    body = problem(model(desk, "m.onnx", path), 422, "INVALID_REQUEST")
    assert [one["pointer"] for one in body["errors"]] == ["/files/1/path"]


def test_two_files_that_differ_in_case_only_are_one_too_many(desk: Desk) -> None:
    body = problem(model(desk, "m.onnx", "W.bin", "w.bin"), 422, "INVALID_REQUEST")
    assert body["errors"][0]["code"] == "DUPLICATE_PATH"


def test_the_entry_is_one_of_the_files(desk: Desk) -> None:
    body = problem(model(desk, "m.onnx", entry="other.onnx"), 422, "INVALID_REQUEST")
    assert body["errors"][0]["code"] == "NO_SUCH_FILE"


def test_blobs_have_to_be_there(desk: Desk) -> None:
    body = {"files": [{"path": "m.onnx", "blob": "sha256:" + "0" * 64}], "entry": "m.onnx"}
    found = problem(desk.http.post("/v1/models", json=body), 422, "INVALID_REQUEST")
    assert found["errors"] == [
        {"pointer": "/files/0/blob", "code": "NO_SUCH_BLOB", "message": "send this content first"}
    ]


@pytest.mark.parametrize(
    ("name", "content", "status", "code"),
    [
        ("m.h5", b"x", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("m.zip", b"PK\x03\x04", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("m.onnx", b"PK\x03\x04....", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("m.onnx", b"\x89HDF\r\n\x1a\n", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("m.pt", b"\x80\x02}q\x00.", 415, "UNSAFE_CONTENT"),
        ("m.pth", b"\x80\x04\x95", 415, "UNSAFE_CONTENT"),
        ("m.pt2", b"not a zip", 415, "UNSUPPORTED_MEDIA_TYPE"),
    ],
)
def test_files_that_are_no_model(desk: Desk, name: str, content: bytes, status: int, code: str) -> None:
    problem(model(desk, name, entry=name, content=content), status, code)


@pytest.mark.parametrize("name", ["m.pt", "m.pt2", "m.ts"])
def test_torch_formats_are_taken(desk: Desk, name: str) -> None:
    assert model(desk, name, entry=name, content=b"PK\x03\x04....").status_code == 201


def test_an_unknown_field_is_refused_with_a_guess(desk: Desk) -> None:
    body = problem(desk.http.post("/v1/jobs", json={"model": "m", "imputs": []}), 422, "INVALID_REQUEST")
    assert "did you mean 'inputs'" in body["errors"][0]["message"]
    body = problem(
        desk.http.post("/v1/jobs", json={"model": "m", "options": {"optimize": "size"}}), 422, "INVALID_REQUEST"
    )
    assert body["errors"][0]["pointer"] == "/options/optimize"
    assert "did you mean 'optimise'" in body["errors"][0]["message"]


def test_a_model_in_use_stays(desk: Desk) -> None:
    job = desk.submit()
    problem(desk.http.delete(f"/v1/models/{job['model']['id']}"), 409, "RESOURCE_IN_USE")
    desk.run(job["id"])
    assert desk.http.delete(f"/v1/models/{job['model']['id']}").status_code == 204


class TestInputs:
    def test_a_file(self, desk: Desk) -> None:
        made = desk.make_input()
        body = desk.http.get(f"/v1/inputs/{made}").json()
        assert (body["filename"], body["size"]) == ("b.npz", len(npz()))
        assert desk.http.delete(f"/v1/inputs/{made}").status_code == 204
        problem(desk.http.get(f"/v1/inputs/{made}"), 404, "NOT_FOUND")

    def test_a_recipe(self, desk: Desk) -> None:
        recipe = {"tensors": {"x": {"shape": [2, 3]}}, "seed": 7}
        body = desk.http.post("/v1/inputs", json={"generator": recipe}).json()
        assert (body["filename"], body["size"], body["generator"]["seed"]) == ("generated.npz", 24, 7)

    @pytest.mark.parametrize(
        ("name", "content"),
        [("b.h5", b"\x89HDF\r\n\x1a\n"), ("b.npz", b"not a zip"), ("b.npy", b"PK\x03\x04"), ("b.txt", b"1 2 3")],
    )
    def test_files_that_are_no_batch(self, desk: Desk, name: str, content: bytes) -> None:
        answer = desk.http.post("/v1/inputs", json={"blob": desk.put_blob(content), "filename": name})
        problem(answer, 415, "UNSUPPORTED_MEDIA_TYPE")

    @pytest.mark.parametrize(
        "body", [{}, {"blob": "sha256:" + "0" * 64, "generator": {"tensors": {"x": {"shape": [1]}}}}, {"blob": "x"}]
    )
    def test_neither_and_both(self, desk: Desk, body: dict[str, Any]) -> None:
        problem(desk.http.post("/v1/inputs", json=body), 422, "INVALID_REQUEST")

    def test_a_huge_recipe_is_refused(self, desk: Desk) -> None:
        recipe = {"tensors": {"x": {"shape": [2**30, 2**30]}}}
        problem(desk.http.post("/v1/inputs", json={"generator": recipe}), 413, "TOO_LARGE")


def test_pages_join_up(desk: Desk) -> None:
    blob = desk.put_blob(npz())
    made = [desk.http.post("/v1/inputs", json={"blob": blob, "filename": f"{n}.npz"}).json()["id"] for n in range(7)]
    seen: list[str] = []
    token: str | None = ""
    while token is not None:
        query = {"page_size": 3, **({"page_token": token} if token else {})}
        page = desk.http.get("/v1/inputs", params=query).json()
        seen += [one["id"] for one in page["items"]]
        token = page["next_page_token"]
    assert seen == made[::-1]


@pytest.mark.parametrize("token", ["x", "e30", "WzEsMiwzXQ", "WyJhIiwgImIiXQ", "é", "W251bGwsIG51bGxd"])
def test_foreign_page_tokens_are_refused(desk: Desk, token: str) -> None:
    problem(desk.http.get("/v1/inputs", params={"page_token": token}), 422, "INVALID_REQUEST")


def test_json_bodies_are_bounded(make_desk: MakeDesk) -> None:
    desk = make_desk(max_json_bytes=2000)
    body = {"files": [{"path": "m" * 1000, "blob": "sha256:" + "0" * 64}] * 5, "entry": "m.onnx"}
    problem(desk.http.post("/v1/models", json=body), 413, "TOO_LARGE")
    problem(desk.http.post("/v1/jobs", json={"model": "m" * 3000}), 413, "TOO_LARGE")
