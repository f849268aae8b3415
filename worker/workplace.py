"""The private folder of one attempt: what is fetched into it, and the request made from it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from converter.errors import EnvironmentFailure
from worker.contract import Claim, ModelFile, Progress
from worker.database.engine import Database
from worker.database.tables import blobs
from worker.lease import Lease
from worker.recipes import write_batch
from worker.storage import Storage

ENGINE_DEFAULTS: Final[Mapping[str, Any]] = {
    "to": "fp16",
    "io_types": "keep",
    "overflow": "clamp",
    "optimise": "size",
    "keep_fp32": [],
    "policy": None,
    "tolerance": None,
    "max_rel_l2": None,
    "min_sqnr_db": None,
    "target": "any",
    "provider": "none",
    "emulate": "ieee",
    "search": False,
    "repair": True,
    "validate": True,
    "metrics": "core",
    "dynamic": [],
    "seed": 0,
}
"""What an option is when a job does not say; the names are the engine's."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Folders of one attempt.  Nothing outside ``root`` is written by the run."""

    root: Path

    @classmethod
    def of(cls, scratch: Path, claim: Claim) -> Workplace:
        """A fresh workplace; the fence in its name keeps a stale attempt out of it."""
        root = scratch.absolute() / f"{claim.job_id}-{claim.fence}"
        shutil.rmtree(root, ignore_errors=True)
        for name in ("model", "batches", "options", "out", "run", "publish"):
            (root / name).mkdir(parents=True)
        return cls(root)

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def publish(self) -> Path:
        return self.root / "publish"


def fetch(place: Workplace, lease: Lease, database: Database, storage: Storage) -> None:
    """Bring every file of the job into the workplace as a new file; progress counts bytes."""
    spec = lease.claim.spec
    wanted = [(place.root / "model" / one.path, one) for one in spec.files]
    for number, batch in enumerate(spec.batches):
        target = place.root / "batches" / f"{number:04d}-{batch.filename}"
        if batch.generator is not None:
            write_batch(batch.generator, target)
        else:
            wanted.append((target, ModelFile(batch.filename, batch.sha256, batch.size)))
    wanted += [(place.root / "options" / f"{name}-{one.path}", one) for name, one in spec.option_files.items()]
    places = _places(database, [one for _, one in wanted])
    total = sum(one.size for _, one in wanted)
    done = 0
    for target, one in wanted:
        lease.check()
        target.parent.mkdir(parents=True, exist_ok=True)
        before = done
        storage.fetch(places[one.sha256], target, lambda n, before=before: lease.note(  # type: ignore[misc]
            Progress("fetch", before + n, total)))  # fmt: skip
        done += one.size


def _places(database: Database, files: list[ModelFile]) -> dict[str, str]:
    digests = {one.sha256 for one in files}
    with database.read() as connection:
        rows = connection.execute(select(blobs.c.sha256, blobs.c.place).where(blobs.c.sha256.in_(digests))).all()
    found: dict[str, str] = {row.sha256: row.place for row in rows}
    if missing := digests - found.keys():
        raise EnvironmentFailure(f"{len(missing)} blobs of the job are no longer stored, first {min(missing)}")
    return found


def request_of(place: Workplace, claim: Claim, threads: int) -> dict[str, Any]:
    """The engine's request: paths in the workplace and the job's options over the defaults."""
    spec = claim.spec
    options = {**ENGINE_DEFAULTS, **spec.options}
    for name, one in spec.option_files.items():
        options[name] = str(place.root / "options" / f"{name}-{one.path}")
    stem = Path(spec.entry).stem
    return {
        "verb": "convert",
        "model": str(place.root / "model" / spec.entry),
        "samples": [str(path) for path in sorted((place.root / "batches").iterdir())],
        "output": str(place.out / f"{stem}-{options['to']}.onnx"),
        "report": str(place.out / "report.json"),
        "html": str(place.out / "report.html"),
        "junit": str(place.out / "junit.xml"),
        "options": options,
        "threads": threads,
    }
