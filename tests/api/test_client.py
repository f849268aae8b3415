"""The Python client against the app, in both manners, and against answers that go wrong."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api.client import (
    AsyncClient,
    Client,
    JobCanceled,
    JobFailed,
    NotAuthorised,
    RequestRefused,
    ServiceFailed,
    ServiceUnreachable,
    WaitTimedOut,
)
from api.client.calls import Reply, pause_before
from api.client.memory import UploadMemory
from api.client.model_files import batch_files, external_names, files_of_model
from converter.errors import ModelError
from tests.api.conftest import Desk
from tests.service_kit import npz, script


class Through(httpx2.BaseTransport):
    """Sends requests to the app of a desk; ``spoil`` may answer or break some of them first."""

    def __init__(self, desk: Desk, spoil: Callable[[httpx2.Request], httpx2.Response | None] = lambda _: None) -> None:
        self.desk = desk
        self.spoil = spoil
        self.seen: list[str] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.seen.append(f"{request.method} {request.url.path}")
        spoiled = self.spoil(request)
        if spoiled is not None:
            return spoiled
        request.read()
        answer = self.desk.http.request(
            request.method, request.url.raw_path.decode(), content=request.content, headers=request.headers
        )
        return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "m.onnx").write_bytes(script(["warn", "hm"]))
    (tmp_path / "b.npz").write_bytes(npz())
    return tmp_path / "m.onnx", tmp_path / "b.npz"


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses of the client, recorded instead of slept."""
    slept: list[float] = []
    monkeypatch.setattr("api.client.synchronous.time.sleep", slept.append)
    return slept


def make(desk: Desk, tmp_path: Path, **options: Any) -> tuple[Client, Through]:
    transport = Through(desk, **options)
    return Client("http://localhost", transport=transport, state_dir=tmp_path / "state"), transport


def test_from_files_to_files(desk: Desk, files: tuple[Path, Path], tmp_path: Path) -> None:
    client, transport = make(desk, tmp_path)
    with client:
        seen: list[tuple[str, int, int]] = []
        job = client.submit(
            files[0], [files[1]], options={"to": "bf16"}, name="mine", on_bytes=lambda *one: seen.append(one)
        )
        assert (job.name, job.state, job.ended) == ("mine", "QUEUED", False)
        assert ("m.onnx", files[0].stat().st_size, files[0].stat().st_size) in seen
        desk.run(job.id)
        states: list[str] = []
        done = client.wait(job.id, 5, lambda one: states.append(one.state))
        assert (done.state, done.verdict, done.exit_status, states[-1]) == ("SUCCEEDED", "pass", 0, "SUCCEEDED")
        done.raise_for_state()
        paths = client.download(job.id, tmp_path / "out")
        assert {one.name for one in paths} >= {"m-bf16.onnx", "report.json", "layers.csv"}
        assert paths[-1].name == "m-bf16.onnx", "the model is renamed last"
        assert client.report(job.id)["verdict"]["status"] == "pass"
        assert len(client.layers(job.id, page_size=2)["items"]) == 2
        assert [one.id for one in client.jobs(state="SUCCEEDED").items] == [job.id]
        assert client.capabilities()["version"]
        kinds = [one.kind for one in client.events(job.id)]
        assert kinds[0] == kinds[-1] == "state"
        assert "warning" in kinds
        transport.seen.clear()
        client.submit(files[0], [files[1]])
        assert not [one for one in transport.seen if one.startswith("PATCH")], "known content is not sent again"
        assert client.retry(job.id).raw["retry_of"] == job.id
        client.delete(job.id)
        with pytest.raises(RequestRefused, match="NOT_FOUND"):
            client.job(job.id)


def test_the_same_awaited(desk: Desk, files: tuple[Path, Path], tmp_path: Path) -> None:
    class Awaited(httpx2.AsyncBaseTransport):
        def __init__(self) -> None:
            self.inner = Through(desk)

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            await request.aread()
            answer = await asyncio.to_thread(self.inner.handle_request, request)
            return httpx2.Response(answer.status_code, headers=answer.headers, content=answer.content)

    async def story() -> None:
        async with AsyncClient("http://localhost", transport=Awaited(), state_dir=tmp_path / "state") as client:
            job = await client.submit(files[0], [files[1]])
            await asyncio.to_thread(desk.run, job.id)
            done = await client.wait(job.id, 5)
            assert (done.state, done.verdict) == ("SUCCEEDED", "pass")
            paths = await client.download(job.id, tmp_path / "out", ["report"])
            assert [one.name for one in paths] == ["report.json"]
            events = [one async for one in client.events(job.id)]
            assert events[-1].body["state"] == "SUCCEEDED"
            assert [one.id for one in (await client.jobs()).items] == [job.id]
            assert (await client.report(job.id))["schema_version"]
            assert (await client.layers(job.id))["items"]
            assert (await client.capabilities())["stages"]
            with pytest.raises(RequestRefused):
                await client.cancel(job.id)
            again = await client.retry(job.id)
            with pytest.raises(WaitTimedOut):
                await client.wait(again.id, 0.05)
            await client.cancel(again.id)
            await client.delete(again.id)

    asyncio.run(story())


def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert public(Client) == public(AsyncClient)


class TestRetries:
    def flaky(self, *answers: int | Exception) -> Callable[[httpx2.Request], httpx2.Response | None]:
        left = list(answers)

        def spoil(_: httpx2.Request) -> httpx2.Response | None:
            if not left:
                return None
            one = left.pop(0)
            if isinstance(one, Exception):
                raise one
            return httpx2.Response(one, headers={"Retry-After": "7"}, json={"detail": "later", "code": "X"})

        return spoil

    def test_passing_trouble_is_waited_out(self, desk: Desk, tmp_path: Path, fast: list[float]) -> None:
        spoil = self.flaky(503, 429, httpx2.ConnectError("gone"), httpx2.ReadTimeout("slow"))
        client, transport = make(desk, tmp_path, spoil=spoil)
        assert client.capabilities()["version"]
        assert len(transport.seen) == 5
        assert fast[0] >= 7, "as Retry-After asks"
        assert fast[2] < 7
        client.close()

    def test_a_repeated_post_carries_one_key(
        self, desk: Desk, files: tuple[Path, Path], tmp_path: Path, fast: Any
    ) -> None:
        keys: list[str] = []
        client, _ = make(desk, tmp_path)
        model, inputs = client.create_model(files[0]), client.create_inputs([files[1]])
        client.close()

        def lose_the_answer(request: httpx2.Request) -> httpx2.Response | None:
            if request.method == "POST":
                keys.append(request.headers["Idempotency-Key"])
                if len(keys) == 1:
                    request.read()
                    desk.http.post("/v1/jobs", content=request.content, headers=request.headers)
                    raise httpx2.ReadError("the answer was lost")
            return None

        client, _ = make(desk, tmp_path, spoil=lose_the_answer)
        client.submit(model, inputs)
        assert len(keys) == 2
        assert len(set(keys)) == 1
        assert len(client.jobs().items) == 1, "one job although it was asked for twice"
        client.close()

    def test_trouble_that_stays_is_reported(self, desk: Desk, tmp_path: Path, fast: list[float]) -> None:
        client, _ = make(desk, tmp_path, spoil=self.flaky(*[httpx2.ConnectError("no")] * 9))
        with pytest.raises(ServiceUnreachable, match="is the service running") as caught:
            client.capabilities()
        assert caught.value.exit_status == 4
        client.close()
        client, _ = make(desk, tmp_path, spoil=self.flaky(*[500] * 9))
        with pytest.raises(ServiceFailed, match="later"):
            client.capabilities()
        client.close()

    @pytest.mark.parametrize(
        ("status", "kind", "exit_status"), [(401, NotAuthorised, 4), (403, NotAuthorised, 4), (422, RequestRefused, 2)]
    )
    def test_refusals_are_not_repeated(
        self, desk: Desk, tmp_path: Path, fast: list[float], status: int, kind: type[RequestRefused], exit_status: int
    ) -> None:
        client, transport = make(desk, tmp_path, spoil=self.flaky(status))
        with pytest.raises(kind) as caught:
            client.capabilities()
        assert (caught.value.exit_status, caught.value.status, len(transport.seen)) == (exit_status, status, 1)
        client.close()

    def test_pauses_grow_with_jitter_and_have_an_end(self) -> None:
        pauses = [[pause_before(attempt, None) for _ in range(200)] for attempt in range(12)]
        assert all(max(one) <= 20 for one in pauses)
        assert len(set(pauses[3])) > 100
        assert max(pauses[0]) <= 0.25
        assert min(pauses[11]) >= 10
        assert pause_before(0, Reply(429, {"retry-after": "30"}, None)) == 30


class TestTransfers:
    def test_an_upload_goes_on_in_another_process(self, desk: Desk, tmp_path: Path, fast: list[float]) -> None:
        """The first client dies after a part; a second one with the same cache folder sends only the rest."""
        content = os.urandom(300_000)
        path = tmp_path / "w.bin"
        path.write_bytes(content)

        def cut(request: httpx2.Request) -> httpx2.Response | None:
            if request.method == "PATCH":
                request.read()
                half = request.content[:100_000]
                headers = {**request.headers, "content-length": str(len(half))}
                desk.http.patch(request.url.path, content=half, headers=headers)
                raise KeyboardInterrupt
            return None

        client, _ = make(desk, tmp_path, spoil=cut)
        with pytest.raises(KeyboardInterrupt):
            client.upload(path)
        client.close()
        sent: list[int] = []

        def count(request: httpx2.Request) -> None:
            if request.method == "PATCH":
                sent.append(int(request.headers["content-length"]))

        client, _ = make(desk, tmp_path, spoil=count)
        assert client.upload(path) == "sha256:" + hashlib.sha256(content).hexdigest()
        assert sent == [200_000]
        client.close()

    def test_an_upload_the_service_forgot_is_started_anew(self, desk: Desk, tmp_path: Path) -> None:
        path = tmp_path / "w.bin"
        path.write_bytes(b"x" * 1000)
        client, _ = make(desk, tmp_path)
        client.memory.remember(path, sha256=hashlib.sha256(b"x" * 1000).hexdigest(), upload="/v1/uploads/upl_gone")
        assert client.upload(path)
        client.close()

    def test_a_file_that_changed_is_another_file(self, tmp_path: Path) -> None:
        path = tmp_path / "w.bin"
        path.write_bytes(b"1")
        memory = UploadMemory("http://a", tmp_path / "state")
        memory.remember(path, sha256="abc")
        assert memory.recall(path) == {"sha256": "abc"}
        assert UploadMemory("http://b", tmp_path / "state").recall(path) == {}
        path.write_bytes(b"12")
        assert memory.recall(path) == {}

    def test_a_spoiled_memory_is_forgotten(self, tmp_path: Path) -> None:
        path = tmp_path / "w.bin"
        path.write_bytes(b"1")
        memory = UploadMemory("http://a", tmp_path / "state")
        memory.remember(path, sha256="abc")
        (tmp_path / "state" / "uploads.json").write_text("{broken")
        assert memory.recall(path) == {}

    def test_a_download_goes_on_and_is_checked(self, desk: Desk, files: tuple[Path, Path], tmp_path: Path) -> None:
        client, _ = make(desk, tmp_path)
        job = client.submit(files[0], [files[1]])
        desk.run(job.id)
        artifact = next(one for one in client.artifacts(job.id) if one.role == "report")
        whole = desk.http.get(f"/v1/jobs/{job.id}/artifacts/report.json").content
        part = tmp_path / f".r.json.{artifact.sha256[:12]}.tmp-narrowcast"
        part.write_bytes(whole[:500])
        done: list[int] = []
        target = client.download_file(job.id, artifact, tmp_path / "r.json", lambda *one: done.append(one[1]))
        assert target.read_bytes() == whole
        assert done[0] > 500, "it went on behind the first 500 bytes"
        part.write_bytes(b"!" * 500)
        with pytest.raises(ServiceFailed, match="arrived with SHA-256"):
            client.download_file(job.id, artifact, tmp_path / "r.json")
        assert not part.exists()
        client.close()


class TestOutcomes:
    def test_failed_and_cancelled_jobs_raise_what_they_are(self, desk: Desk, tmp_path: Path) -> None:
        client, _ = make(desk, tmp_path)
        wrong = client.job(desk.finished(["error", "INPUT_MISMATCH"]))
        broken = client.job(desk.finished(["error", "INTERNAL"]))
        below = client.job(desk.finished(["verdict", "fail"]))
        stopped = client.cancel(desk.submit()["id"])
        assert [one.exit_status for one in (wrong, broken, below, stopped)] == [2, 3, 1, 6]
        with pytest.raises(JobFailed, match="INPUT_MISMATCH: told to fail"):
            wrong.raise_for_state()
        with pytest.raises(JobCanceled, match="was cancelled"):
            stopped.raise_for_state()
        below.raise_for_state()
        client.close()

    def test_a_wait_that_ends_leaves_the_job_alone(self, desk: Desk, tmp_path: Path) -> None:
        client, _ = make(desk, tmp_path)
        job = desk.submit()["id"]
        with pytest.raises(WaitTimedOut, match="still QUEUED") as caught:
            client.wait(job, 0.1)
        assert caught.value.exit_status == 5
        assert client.job(job).state == "QUEUED"
        client.close()


class TestModelFiles:
    def onnx_model(self, folder: Path, **options: Any) -> Path:
        import numpy as np
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        weight = numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
        inner = helper.make_graph(
            [helper.make_node("Identity", ["v"], ["o"])], "body", [],
            [helper.make_tensor_value_info("o", TensorProto.FLOAT, [16, 16])],
            [numpy_helper.from_array(np.ones((16, 16), np.float32), "v")],
        )  # fmt: skip
        graph = helper.make_graph(
            [helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
             helper.make_node("MatMul", ["x", "w"], ["z"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16]),
             helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 16])], [weight],
        )  # fmt: skip
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.save_model(model, folder / "m.onnx", **options)
        return folder / "m.onnx"

    def test_external_data_is_found(self, tmp_path: Path) -> None:
        path = self.onnx_model(
            tmp_path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0,
            convert_attribute=True,
        )  # fmt: skip
        assert set(files_of_model(path)) == {"m.onnx", "w", "v"}

    def test_a_model_of_one_file(self, tmp_path: Path) -> None:
        path = self.onnx_model(tmp_path)
        assert files_of_model(path) == {"m.onnx": path}

    def test_missing_data_is_named(self, tmp_path: Path) -> None:
        path = self.onnx_model(tmp_path, save_as_external_data=True, location="w.bin", size_threshold=0)
        (tmp_path / "w.bin").unlink()
        with pytest.raises(ModelError, match="which is not beside it"):
            files_of_model(path)

    def test_data_outside_the_folder_is_refused(self, tmp_path: Path) -> None:
        path = self.onnx_model(tmp_path, save_as_external_data=True, location="abcd", size_threshold=0)
        path.write_bytes(path.read_bytes().replace(b"abcd", b"../x"))
        with pytest.raises(ModelError, match="not below the model"):
            files_of_model(path)

    @pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 100, os.urandom(500)])
    def test_what_is_no_model_has_no_data(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "m.onnx").write_bytes(content)
        external_names(tmp_path / "m.onnx")

    def test_batches_and_folders_of_them(self, tmp_path: Path) -> None:
        folder = tmp_path / "batches"
        folder.mkdir()
        with pytest.raises(ModelError, match="holds no"):
            batch_files([folder])
        for name in ("b.npz", "a.npy", "c.txt"):
            (folder / name).write_bytes(b"")
        assert [one.name for one in batch_files([folder, folder / "b.npz"])] == ["a.npy", "b.npz", "b.npz"]
        with pytest.raises(ModelError, match="there is no batch at"):
            batch_files([tmp_path / "none"])
