"""F13, F14, F21, F22, F24: locked database, full disk, an API killed during uploads, streams that break."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from api.client import Client, ServiceUnreachable
from tests.faults.conftest import MakeStack, check
from tests.service_kit import (
    ROOT,
    Stack,
    can_mount,
    environment,
    small_disk,
    wait_until,
)


def test_f13_the_database_is_locked_for_a_while(make_stack: MakeStack) -> None:
    stack = make_stack()
    job = stack.submit(["sleep", 2])
    stack.wait_stage(job, "compare")
    blocker = sqlite3.connect(stack.data / "narrowcast.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    time.sleep(1)
    assert stack.state(job) == "RUNNING", "reading goes on"
    time.sleep(7)
    blocker.execute("ROLLBACK")
    blocker.close()
    done = stack.wait_end(job, 30)
    assert done["state"] == "SUCCEEDED"
    check(stack)


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
def test_f14_everything_lies_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk("48m") as full:
        (tmp_path / "data").symlink_to(full)
        with Stack(tmp_path, {"retry_delays_s": (0.0,)}) as stack:
            good = stack.submit()
            assert stack.wait_end(good)["state"] == "SUCCEEDED"
            greedy = stack.submit(["fill", 100 * 2**20])
            done = stack.wait_end(greedy, 30)
            assert (done["state"], done["error"]["code"]) == ("FAILED", "DISK_FULL")
            after = stack.submit()
            assert stack.wait_end(after, 30)["state"] == "SUCCEEDED", "space was freed, the service goes on"
            (full / "filler").write_bytes(b"x" * (full_bytes(full) - 300_000))
            answer = stack.http.post("/v1/uploads", json={"size": 5 * 2**20})
            assert (answer.status_code, answer.json()["code"]) == (507, "STORAGE_FULL")
            (full / "filler").unlink()
            assert stack.http.post("/v1/uploads", json={"size": 5 * 2**20}).status_code == 201
            check(stack)


def test_f21_the_api_is_killed_during_an_upload(tmp_path: Path) -> None:
    """Twenty kills at random bytes; then the file is whole, and no offset was ever beyond what was stored."""

    random.seed(21)
    content = random.randbytes(24 * 2**20)
    path = tmp_path / "weights.bin"
    path.write_bytes(content)
    with Stack(tmp_path, {"direct_bytes": 2**20}, worker_count=0, with_broker=False) as stack:
        kills = 0
        blob = ""
        stop = threading.Event()

        def killer() -> None:
            nonlocal kills
            while not stop.is_set() and kills < 20:
                time.sleep(random.uniform(0.01, 0.12))
                if stop.is_set():
                    return
                stack.api.kill()
                kills += 1
                stack.api.start()
                wait_until(lambda: stack.http.get("/healthz").status_code == 200, 20, "API")

        def slowly(done: int) -> None:
            time.sleep(0.004)

        thread = threading.Thread(target=killer)
        thread.start()
        client = Client(stack.url, state_dir=tmp_path / "state", tries=30)
        try:
            for _ in range(60):
                try:
                    blob = client.upload(path, lambda *_: slowly(0))
                    break
                except ServiceUnreachable:
                    continue
        finally:
            stop.set()
            thread.join()
            client.close()
        assert kills >= 3, "the upload was over before anything was killed"
        assert blob == "sha256:" + hashlib.sha256(content).hexdigest()
        stored = list((stack.data / "store/blobs").rglob("*-*"))
        assert [hashlib.sha256(one.read_bytes()).hexdigest() for one in stored] == [blob[7:]]


def test_f22_two_writers_of_one_upload(shared_stack: Stack) -> None:

    content = os.urandom(8 * 2**20)
    digest = hashlib.sha256(content).hexdigest()
    asked = {"size": len(content), "sha256": digest}
    place = shared_stack.http.post("/v1/uploads", json=asked).headers["location"]
    headers = {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}

    def send(_: int) -> int:
        def pieces() -> Iterator[bytes]:
            for start in range(0, len(content), 2**18):
                time.sleep(0.005)
                yield content[start : start + 2**18]

        return httpx2.patch(shared_stack.url + place, content=pieces(), headers=headers, timeout=30).status_code

    with ThreadPoolExecutor(2) as pool:
        statuses = sorted(pool.map(send, range(2)))
    assert statuses[0] == 204
    assert statuses[1] in (409, 423)
    assert shared_stack.http.head(f"/v1/blobs/sha256:{digest}").status_code == 200


def test_f24_event_streams_that_break(shared_stack: Stack) -> None:
    """Five readers that drop their connection all the time see every event exactly once."""
    steps = [["progress", "compare", n, 40] for n in range(40)]
    slow = [part for one in steps for part in (one, ["sleep", 0.06])]
    job = shared_stack.submit(*slow)
    seen: list[list[int]] = [[] for _ in range(5)]

    def read(numbers: list[int]) -> None:

        while True:
            headers = {"Last-Event-ID": str(numbers[-1] if numbers else 0)}
            with httpx2.stream(
                "GET", f"{shared_stack.url}/v1/jobs/{job}/events", headers=headers, timeout=30
            ) as answer:
                taken = 0
                for line in answer.iter_lines():
                    if line.startswith("id: "):
                        numbers.append(int(line[4:]))
                        taken += 1
                    if line.startswith("data: ") and ('"SUCCEEDED"' in line):
                        return
                    if taken == 3 and line == "":
                        break

    threads = [threading.Thread(target=read, args=(one,)) for one in seen]
    for one in threads:
        one.start()
    for one in threads:
        one.join(40)
    last = shared_stack.http.get(f"/v1/jobs/{job}/events").text.rsplit("id: ", 1)[1].split("\n")[0]
    assert int(last) > 20
    for numbers in seen:
        assert numbers == list(range(1, int(last) + 1))


def full_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def test_settings_of_another_process_are_the_same(tmp_path: Path) -> None:
    """The kit's own promise: what a test sets, the process gets."""
    code = "from worker.settings import read_settings; print(read_settings().model_dump_json())"
    done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path, lease_s=7.5), cwd=ROOT,
                          capture_output=True, text=True, check=True)  # fmt: skip

    found = json.loads(done.stdout)
    assert (found["lease_s"], found["sweep_s"], found["data_dir"]) == (7.5, 0.5, str(tmp_path))
