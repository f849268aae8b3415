"""What API, workers and clients agree on: states, stages, the job record and its errors.

Light on purpose: the web process imports it, so nothing here may import onnx, onnxruntime or a database driver.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from converter.types import STAGES as ENGINE_STAGES

RUN_TASK: Final = "narrowcast.run"
"""Name under which a job is enqueued; the message holds the job's id and nothing else."""

STAGES: Final = ("fetch", *ENGINE_STAGES, "publish")
VERDICTS: Final = ("pass", "fail", "unchecked")
DEVICES: Final = ("cpu", "cuda", "npu")


class State(enum.StrEnum):
    """Whether the job ran; what the numbers are worth is the verdict, a field of its own."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELING = "CANCELING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    EXPIRED = "EXPIRED"


TERMINAL: Final = (State.SUCCEEDED, State.FAILED, State.CANCELED, State.EXPIRED)
OPEN: Final = (State.QUEUED, State.RUNNING, State.CANCELING)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model: where it lies relative to the entry's folder, and what it holds."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """One batch: a file, or a recipe (``generator``) from which the worker makes one."""

    id: str
    filename: str
    sha256: str = ""
    size: int = 0
    generator: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """Everything that determines a job's result, as stored on its row."""

    model_id: str
    entry: str
    files: tuple[ModelFile, ...]
    batches: tuple[SampleBatch, ...]
    options: Mapping[str, Any]
    option_files: Mapping[str, ModelFile] = field(default_factory=dict)
    """Option name (``policy``, ``tolerance``) -> the file given for it."""

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> JobSpec:
        return cls(
            model_id=stored["model_id"],
            entry=stored["entry"],
            files=tuple(ModelFile(**one) for one in stored["files"]),
            batches=tuple(SampleBatch(**one) for one in stored["batches"]),
            options=stored["options"],
            option_files={name: ModelFile(**one) for name, one in stored.get("option_files", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's right to run a job until its lease ends; ``fence`` grows with every claim of the job."""

    job_id: str
    tenant: str
    fence: int
    attempt: int
    worker: str
    spec: JobSpec
    deadline_s: float
    cancel_requested: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is; ``total`` 0 means "not known"."""

    stage: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Artifact:
    """One published file; ``role`` says what it is for (model, data, report, html, csv, junit, nodes, layers)."""

    name: str
    role: str
    media_type: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt consumed and how it ended, for the list of attempts on the job."""

    peak_rss: int = 0
    signal: int = 0
    exit_status: int | None = None
    log: str = ""


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed, in the shape of the API's problem documents."""

    code: str
    detail: str
    stage: str = ""
    node: str = ""
    retryable: bool = False
    exit_status: int = 3
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


MEDIA_TYPES: Final[Mapping[str, str]] = {
    "model": "application/vnd.onnx",
    "data": "application/octet-stream",
    "report": "application/json",
    "html": "text/html; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "junit": "application/xml",
    "nodes": "application/vnd.model-explorer+json",
    "markdown": "text/markdown; charset=utf-8",
    "layers": "application/vnd.sqlite3",
}
