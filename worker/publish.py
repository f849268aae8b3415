"""From what the engine left in its folder to a set of artifacts that appears all at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from converter.errors import InternalError
from converter.report import view
from worker.contract import MEDIA_TYPES, Artifact, Claim
from worker.layers import write_layers
from worker.publish_names import set_name
from worker.storage import Storage
from worker.workplace import Workplace

VIEWS: Final[Mapping[str, tuple[str, str]]] = {
    "html": ("html", "report.html"),
    "csv": ("csv", "layers.csv"),
    "junit": ("junit", "junit.xml"),
    "markdown": ("markdown", "report.md"),
    "nodes": ("model-explorer", "node-data.json"),
}
"""Role -> (view of the report, file name)."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a run produced, before the row that makes it count."""

    verdict: str
    summary: Mapping[str, Any]
    artifacts: tuple[Artifact, ...]


def publish(place: Workplace, result: Mapping[str, Any], claim: Claim, storage: Storage) -> Published:
    """Gather the run's files, add the views of its report, and store them under the attempt's name.

    Raises:
        InternalError: the engine named a file that is missing or lies outside its folder.
    """
    roles = dict(_collect(place, result["files"]))
    report = json.loads((place.publish / "report.json").read_bytes())
    for role, (name, filename) in VIEWS.items():
        if role not in roles.values():
            (place.publish / filename).write_bytes(view(report, name))
            roles[filename] = role
    write_layers(report["layers"], place.publish / "layers.sqlite")
    roles["layers.sqlite"] = "layers"
    artifacts = tuple(_artifact(place.publish / name, roles[name]) for name in sorted(roles))
    storage.put_set(place.publish, set_name(claim.job_id, claim.fence))
    return Published(str(result["verdict"]), result.get("summary") or {}, artifacts)


def _collect(place: Workplace, files: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Move the engine's files to the folder that will be published; yields (name, role)."""
    models = [Path(one) for one in files.get("model") or ()]
    wanted = [(path, "data" if number else "model") for number, path in enumerate(models)]
    wanted += [(Path(files[role]), role) for role in ("report", "html", "junit", "csv") if files.get(role)]
    if not any(role == "report" for _, role in wanted):
        raise InternalError("the engine finished without a report")
    for path, role in wanted:
        if path.is_symlink() or path.parent.resolve() != place.out.resolve() or not path.is_file():
            raise InternalError(f"the engine names {path.name!r} as its {role}, which is no file in its folder")
        path.rename(place.publish / path.name)
        yield path.name, role


def _artifact(path: Path, role: str) -> Artifact:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(path.name, role, MEDIA_TYPES[role], path.stat().st_size, digest)
