"""Figures of the service, both sides in one run on one machine.

    upload    a large file to our upload endpoint, and by the same client to a bare uvicorn app that only writes it;
              both leave it synced to the disk, and a third column shows the bare app without that
    latency   submit-to-result of a small model against the same conversion in this process
    followers status reads while 50 pollers and 50 event streams follow a running job
    jobs      1,000 tiny jobs on two workers: none lost, none double

``python benchmarks/service.py [PART ...] [--size-gb 4] [--model M.onnx --samples B.npz]``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from api.client import Client
from api.client.calls import Call, Source
from api.client.memory import digest_of
from tests.faults.invariants import broken_invariants
from tests.service_kit import ROOT, Stack, free_port, npz, script, wait_until

PARTS = ("upload", "latency", "followers", "jobs")
PRODUCTION: dict[str, Any] = {
    "lease_s": 60.0, "beat_s": 10.0, "watch_s": 0.2, "cancel_poll_s": 1.0, "sweep_s": 10.0, "requeue_after_s": 60.0,
    "worker_beat_s": 5.0, "orphan_age_s": 3600.0, "child_command": [],
}  # fmt: skip
"""The kit's quick settings back to what a user gets."""
BARE = """
import os, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    with open(os.environ["TARGET"], "wb", buffering=0) as file:
        more = True
        while more:
            message = await receive()
            file.write(message.get("body", b""))
            more = message.get("more_body", False)
        if os.environ["SYNC"]:
            os.fdatasync(file.fileno())
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
uvicorn.run(app, host="127.0.0.1", port=int(os.environ["PORT"]), http="httptools", loop="uvloop", log_level="error",
            access_log=False, lifespan="off")
"""


def make_file(path: Path, size: int) -> None:
    """A file of noise that is no two times the same block."""
    block = bytearray(os.urandom(2**22))
    with path.open("wb") as file:
        for number in range(size // len(block)):
            block[:8] = number.to_bytes(8, "little")
            file.write(block)
    subprocess.run(["sync"], check=True)


class Peak(threading.Thread):
    """The largest resident size a process has while this runs, above what it had before."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._path = Path(f"/proc/{pid}/statm")
        self._over = threading.Event()
        self.before = self._now()
        self.peak = self.before

    def _now(self) -> int:
        return int(self._path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.peak = max(self.peak, self._now())

    def growth(self) -> int:
        self._over.set()
        self.join()
        return self.peak - self.before


@dataclass(frozen=True, slots=True)
class Sent:
    """What one upload took: seconds, and processor seconds of the server."""

    seconds: float
    cpu_s: float


def send_to_bare(path: Path, folder: Path, *, synced: bool) -> Sent:
    """The file to the bare app."""
    port = free_port()
    target = folder / "bare.bin"
    variables = {**os.environ, "PORT": str(port), "TARGET": str(target), "SYNC": "1" if synced else ""}
    app = subprocess.Popen([sys.executable, "-c", BARE], env=variables, cwd=ROOT)
    try:
        wait_until(lambda: _answers(port), 20, "bare app")
        size = path.stat().st_size
        with Client(f"http://127.0.0.1:{port}", state_dir=folder) as client:
            start, before = time.perf_counter(), cpu_seconds(app.pid)
            reply = client._send_once(Call("PATCH", "/", source=Source(path, 0, size), timeout_s=600))
            sent = Sent(time.perf_counter() - start, cpu_seconds(app.pid) - before)
        assert reply.status == 204
        assert target.stat().st_size == size
        return sent
    finally:
        app.terminate()
        app.wait()
        target.unlink(missing_ok=True)
        subprocess.run(["sync"], check=True)


def send_to_ours(path: Path, folder: Path, stack: Stack, growth: list[int]) -> Sent:
    """The file to our endpoint, by the client as users have it; its digest is known to the client beforehand."""
    with Client(stack.url, state_dir=Path(tempfile.mkdtemp(dir=folder))) as client:
        client.memory.remember(path, sha256=digest_of(path))
        peak = Peak(stack.api.pid)
        peak.start()
        start, before = time.perf_counter(), cpu_seconds(stack.api.pid)
        client.upload(path)
        sent = Sent(time.perf_counter() - start, cpu_seconds(stack.api.pid) - before)
    growth.append(peak.growth())
    _forget(stack)
    return sent


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _answers(port: int) -> bool:
    return httpx2.post(f"http://127.0.0.1:{port}/", content=b"x").status_code == 204


def upload(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    """The sides in turns, each time beginning with another, and each on a disk with nothing left to write."""
    path = folder / "large.bin"
    make_file(path, size)
    sent: dict[str, list[Sent]] = {"bare": [], "ours": [], "bare_unsynced": []}
    growth: list[int] = []
    with Stack(folder / "stack", PRODUCTION, worker_count=0, with_broker=False) as stack:
        sides: list[tuple[str, Callable[[], Sent]]] = [
            ("bare", lambda: send_to_bare(path, folder, synced=True)),
            ("ours", lambda: send_to_ours(path, folder, stack, growth)),
            ("bare_unsynced", lambda: send_to_bare(path, folder, synced=False)),
        ]
        for _ in range(rounds):
            for name, send in sides:
                sent[name].append(send())
            sides = [*sides[1:], sides[0]]
    path.unlink()
    speeds = {name: [size / one.seconds / 1e6 for one in found] for name, found in sent.items()}
    middle = {name: statistics.median(found) for name, found in speeds.items()}
    ratio = middle["ours"] / middle["bare"]
    return {
        "size_gb": size / 2**30,
        "mb_s": {name: [round(one) for one in found] for name, found in speeds.items()},
        "server_cpu_s_per_gb": {
            name: round(statistics.median(one.cpu_s for one in found) / size * 2**30, 2) for name, found in sent.items()
        },
        "ratio": round(ratio, 2),
        "ratio_to_bare_unsynced": round(middle["ours"] / middle["bare_unsynced"], 2),
        "rss_growth_mb": round(max(growth) / 2**20, 1),
        "bar": "ratio >= 0.8, growth <= 64 MB",
        "met": ratio >= 0.8 and max(growth) <= 64 * 2**20,
    }


def _forget(stack: Stack) -> None:
    """Remove what was uploaded, so that the next round sends it again."""
    from sqlalchemy import delete

    from worker.database.tables import blobs, holders, uploads

    with stack.database.write() as connection:
        for table in (uploads, holders, blobs):
            connection.execute(delete(table))
    for one in (stack.data / "store" / "blobs").rglob("*-*"):
        one.unlink()
    subprocess.run(["sync"], check=True)


def latency(folder: Path, model: Path, samples: Path, rounds: int) -> dict[str, Any]:
    """Difference of the medians; before each round the worker's next child is prepared, as between two users."""
    from converter import convert

    def in_process(number: int) -> float:
        start = time.perf_counter()
        convert(str(model), [str(samples)], output=str(folder / f"local{number}.onnx"))
        return time.perf_counter() - start

    in_process(0)
    local = [in_process(number) for number in range(rounds)]
    served = []
    with Stack(folder / "stack", PRODUCTION) as stack, Client(stack.url, state_dir=folder) as client:
        for number in range(rounds + 1):
            wait_until_prepared(stack)
            start = time.perf_counter()
            job = client.wait(client.submit(model, [samples], options={"seed": number}).id, 60)
            served.append(time.perf_counter() - start)
            assert job.state == "SUCCEEDED", job.reason
    above = statistics.median(served[1:]) - statistics.median(local)
    return {
        "in_process_s": round(statistics.median(local), 3),
        "submit_to_result_s": round(statistics.median(served[1:]), 3),
        "above_s": round(above, 3),
        "rounds": rounds,
        "bar": "above <= 0.7 s",
        "met": above <= 0.7,
    }


def wait_until_prepared(stack: Stack) -> None:
    """Until the waiting child has loaded the engine: it is there, and uses no processor time any more."""
    used = -1.0
    while used <= 0 or cpu_seconds(stack.engine_pid(stack.workers[0])) != used:
        used = cpu_seconds(stack.engine_pid(stack.workers[0]))
        time.sleep(0.5)


def followers(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """``count`` pollers (four reads a second each) and ``count`` event streams, while the job reports progress."""
    steps: list[list[Any]] = []
    for number in range(int(seconds * 5)):
        steps += [["progress", "compare", number, int(seconds * 5)], ["sleep", 0.2]]
    changes = {**PRODUCTION}
    changes.pop("child_command")
    with Stack(folder / "stack", changes) as stack:
        job = stack.submit(*steps)
        stack.wait_stage(job, "compare")
        times, events = asyncio.run(_follow(stack.url, job, count, seconds))
        state = stack.wait_end(job)["state"]
    times.sort()
    p99 = times[int(len(times) * 0.99)] * 1000
    return {
        "pollers": count,
        "streams": count,
        "reads": len(times),
        "reads_per_s": round(len(times) / seconds),
        "p50_ms": round(statistics.median(times) * 1000, 1),
        "p99_ms": round(p99, 1),
        "events_per_stream": sorted(set(events)),
        "job": state,
        "bar": "p99 <= 50 ms",
        "met": p99 <= 50 and state == "SUCCEEDED",
    }


async def _follow(url: str, job: str, count: int, seconds: float) -> tuple[list[float], list[int]]:
    """Plain sockets, so that what is measured is the service and not a client that shares the machine with it."""
    port = int(url.rsplit(":", 1)[1])
    times: list[float] = []

    async def ask(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return reader, writer

    async def poll(number: int) -> None:
        await asyncio.sleep(number / count * 0.25)
        reader, writer = await ask("/healthz")
        await _answer(reader)
        until = time.perf_counter() + seconds
        while (start := time.perf_counter()) < until:
            writer.write(f"GET /v1/jobs/{job} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await _answer(reader)
            times.append(time.perf_counter() - start)
            await asyncio.sleep(max(0.0, 0.25 - (time.perf_counter() - start)))
        writer.close()

    async def stream() -> int:
        reader, writer = await ask(f"/v1/jobs/{job}/events")
        seen = 0
        while (line := await reader.readline()) != b"0\r\n":
            seen += line.startswith(b"id: ")
        writer.close()
        return seen

    streams = [asyncio.create_task(stream()) for _ in range(count)]
    await asyncio.gather(*(poll(number) for number in range(count)))
    return times, list(await asyncio.gather(*streams))


async def _answer(reader: asyncio.StreamReader) -> bytes:
    status = await reader.readline()
    assert b" 200 " in status, status
    length = 0
    while (line := await reader.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return await reader.readexactly(length)


def jobs(folder: Path, count: int) -> dict[str, Any]:
    """Submitted as fast as one connection goes; every job is a child process of its own."""
    changes = {**PRODUCTION}
    changes.pop("child_command")
    with Stack(folder / "stack", changes, worker_count=2) as stack:
        blob = {"files": [("model", ("m.onnx", script())), ("samples", ("b.npz", npz()))]}
        first = stack.http.post("/v1/jobs", **blob).json()
        body = {"model": first["model"]["id"], "inputs": [one["id"] for one in first["inputs"]]}
        start = time.perf_counter()
        for _ in range(count - 1):
            answer = stack.http.post("/v1/jobs", json=body)
            assert answer.status_code == 202, answer.text
        submitted = time.perf_counter() - start
        wait_until(lambda: not _open_jobs(stack), 600, "all jobs")
        seconds = time.perf_counter() - start
        broken = broken_invariants(stack.database, stack.data / "store")
        states, doubles = _count(stack)
    return {
        "jobs": count,
        "submit_s": round(submitted, 1),
        "all_done_s": round(seconds, 1),
        "jobs_per_s": round(count / seconds, 1),
        "states": states,
        "run_twice": doubles,
        "broken_invariants": broken,
        "bar": "none lost, none double",
        "met": states == {"SUCCEEDED": count} and doubles == 0 and not broken,
    }


def _open_jobs(stack: Stack) -> bool:
    queries = ("QUEUED", "RUNNING")
    return any(stack.http.get(f"/v1/jobs?state={one}&page_size=1").json()["items"] for one in queries)


def _count(stack: Stack) -> tuple[dict[str, int], int]:
    from sqlalchemy import func, select

    from worker.database.tables import attempts
    from worker.database.tables import jobs as table

    with stack.database.read() as connection:
        states = connection.execute(select(table.c.state, func.count()).group_by(table.c.state)).all()
        tried = select(attempts.c.job_id).group_by(attempts.c.job_id).having(func.count() > 1)
        return {row[0]: row[1] for row in states}, len(connection.execute(tried).all())


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nc-bench-") as name:
        folder = Path(name)
        (folder / "stack").mkdir()
        yield folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--size-gb", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3, help="of uploads")
    parser.add_argument("--model", type=Path, help="for latency")
    parser.add_argument("--samples", type=Path, help="for latency")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for part in options.parts or PARTS:
        if part == "latency" and not (options.model and options.samples):
            print("latency needs --model and --samples", file=sys.stderr)
            continue
        with scratch() as folder:
            match part:
                case "upload":
                    results[part] = upload(folder, int(options.size_gb * 2**30), options.rounds)
                case "latency":
                    results[part] = latency(folder, options.model, options.samples, 10)
                case "followers":
                    results[part] = followers(folder, 50, 10.0)
                case "jobs":
                    results[part] = jobs(folder, 1000)
                case _:
                    parser.error(f"there is no part {part!r}")
        print(part, json.dumps(results[part]), file=sys.stderr, flush=True)
    print(json.dumps(results, indent=2))
    return 0 if all(one["met"] for one in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
