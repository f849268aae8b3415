"""Bodies of requests and answers.  Unknown fields are refused."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from worker.contract import State

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
_NO_NUL = r"^[^\x00]*$"
ShortName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_NO_NUL)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=_NO_NUL)]
Label = Annotated[str, StringConstraints(max_length=200, pattern=_NO_NUL)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./-]{1,63}$")]
Moment = dt.datetime
EXAMPLE_DIGEST = "sha256:" + "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


class Strict(BaseModel):
    """A request body."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OptionFile(Strict):
    """A file given for an option, sent as a blob before."""

    filename: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    blob: Digest


class ConversionOptions(Strict):
    """What `narrowcast convert` takes, under the same names."""

    to: Literal["fp16", "bf16"] = "fp16"
    io_types: Literal["keep", "narrow"] = "keep"
    overflow: Literal["clamp", "widen"] = "clamp"
    optimise: Literal["size", "speed"] = "size"
    keep_fp32: list[Pattern] = Field([], max_length=1000, description="nodes or values to keep in FP32")
    policy: OptionFile | None = None
    tolerance: Literal["fp16-default", "bf16-default", "strict", "loose"] | OptionFile | None = None
    max_rel_l2: float | None = Field(None, gt=0)
    min_sqnr_db: float | None = None
    target: ShortName = "any"
    provider: ShortName = "none"
    emulate: ShortName = "ieee"
    search: bool = False
    repair: bool = True
    validate_: bool = Field(True, alias="validate", description="false: convert only, verdict `unchecked`")
    metrics: Literal["core", "all"] = "core"
    dynamic: list[Pattern] = Field([], max_length=100, description="INPUT:AXIS")
    seed: int = Field(0, ge=0, lt=2**63)


class JobWebhook(Strict):
    """Where this job's news go."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[\x21-\x7e]+$", max_length=2000)]
    secret: Annotated[
        str, StringConstraints(pattern=r"^whsec_(?:[A-Za-z0-9+/]{4}){5,22}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
    ] = Field(description="`whsec_` and the key in base64, as Standard Webhooks has it")
    events: list[Literal["job.started", "job.succeeded", "job.failed", "job.canceled", "job.expired"]] = []


class JobRequest(Strict):
    """A conversion to run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "mdl_0123456789abcdef01234567",
                    "inputs": ["inp_0123456789abcdef01234567"],
                    "options": {"to": "fp16", "keep_fp32": ["/head/*"]},
                    "labels": {"branch": "main"},
                }
            ]
        }
    )

    model: ShortName
    inputs: list[ShortName] = Field([], max_length=1000, description="may be empty only with `validate: false`")
    options: ConversionOptions = ConversionOptions()
    name: ShortName | None = None
    device: Literal["cpu", "cuda", "npu"] = "cpu"
    deadline_s: float | None = Field(None, gt=0, description="run time after which the job is ended")
    labels: dict[LabelName, Label] = Field({}, max_length=50)
    webhook: JobWebhook | None = None
    reuse: Literal["allow", "never"] = Field("never", description="allow: an equal finished job is the answer")
    pinned: bool = Field(False, description="true: neither record nor files expire")


OPTION_NAMES = (*(f.alias or n for n, f in ConversionOptions.model_fields.items()), *JobRequest.model_fields)


class UploadRequest(Strict):
    """A file to be sent."""

    size: int = Field(ge=0, lt=2**63, examples=[104857600])
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    filename: Annotated[str, StringConstraints(max_length=255, pattern=_NO_NUL)] = ""


class ManifestFile(Strict):
    """One file of a model; `path` is relative to the entry's folder."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    blob: Digest


class ModelRequest(Strict):
    """A model as a manifest of blobs; no archive is ever unpacked."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"files": [{"path": "model.onnx", "blob": EXAMPLE_DIGEST}], "entry": "model.onnx"}]
        }
    )

    files: list[ManifestFile] = Field(min_length=1, max_length=1000)
    entry: Annotated[str, StringConstraints(min_length=1, max_length=1024)]
    format: Literal["onnx", "torch-export", "torchscript"] | None = None


class TensorRecipe(Strict):
    """How one input is filled."""

    shape: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(max_length=16)
    dtype: Literal["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"] = "float32"
    distribution: Literal["normal", "uniform", "integers", "zeros", "ones"] = "normal"
    low: float = 0.0
    high: float = 1.0
    mean: float = 0.0
    std: float = Field(1.0, ge=0)


class Recipe(Strict):
    """A batch the worker makes: numbers follow from shapes, distributions and seed."""

    tensors: dict[ShortName, TensorRecipe] = Field(min_length=1, max_length=1000)
    seed: int = Field(0, ge=0, lt=2**63)


class InputRequest(Strict):
    """A batch: a blob with its file name, or a recipe."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"blob": EXAMPLE_DIGEST, "filename": "batch.npz"},
                {"generator": {"tensors": {"x": {"shape": [1, 3, 224, 224]}}, "seed": 1}},
            ]
        }
    )

    blob: Digest | None = None
    filename: Annotated[str, StringConstraints(pattern=r"^[^/\\\x00-\x1f]{1,200}$")] | None = None
    generator: Recipe | None = None


class WebhookRequest(Strict):
    """A receiver of this tenant's news; an empty list of events means all of them."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[\x21-\x7e]+$", max_length=2000)] = Field(
        examples=["https://ci.example.com/hooks/narrowcast"]
    )
    events: list[Literal["job.started", "job.succeeded", "job.failed", "job.canceled", "job.expired"]] = []


Scope = Literal[
    "blobs:write", "models:read", "models:write", "jobs:read", "jobs:write", "artifacts:read", "webhooks:write", "admin"
]


class KeyRequest(Strict):
    """A new API key."""

    name: ShortName
    tenant: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,38}$")] = "default"
    scopes: list[Scope] = Field(min_length=1)
    expires_in_s: float | None = Field(None, gt=0, lt=10**9)


class PinRequest(Strict):
    """Whether a job is kept for good."""

    pinned: bool


# ------------------------------------------------------------------------------------------------ answers


class Blob(BaseModel):
    """Content the tenant holds."""

    blob: Digest
    size: int


class Upload(BaseModel):
    """A file on its way; `offset` bytes are stored for good."""

    id: str
    size: int
    offset: int
    filename: str
    blob: Digest | None = None
    expires_at: Moment


class Model(BaseModel):
    """A model that jobs can refer to."""

    id: str
    entry: str
    format: str
    files: list[dict[str, Any]]
    created_at: Moment
    expires_at: Moment


class Batch(BaseModel):
    """A batch that jobs can refer to."""

    id: str
    filename: str
    size: int
    blob: Digest | None
    generator: dict[str, Any] | None
    created_at: Moment
    expires_at: Moment


class JobProgress(BaseModel):
    """How far the run is; `total` 0: not known."""

    stage: str
    done: int
    total: int


class Attempt(BaseModel):
    """One try to run the job; `outcome` is null while it runs."""

    number: int
    worker: str
    outcome: str | None
    stage: str
    node: str
    signal: int
    exit_status: int | None
    peak_rss_bytes: int
    started_at: Moment
    finished_at: Moment | None


class Job(BaseModel):
    """A conversion: `state` says whether it ran, `verdict` what its numbers are worth."""

    id: str
    name: str
    state: State
    verdict: Literal["pass", "fail", "unchecked"] | None
    progress: JobProgress
    device: str
    model: dict[str, Any]
    inputs: list[dict[str, Any]]
    options: dict[str, Any]
    labels: dict[str, str]
    deadline_s: float
    retry_of: str | None
    pinned: bool
    error: dict[str, Any] | None
    summary: dict[str, Any] | None
    attempts: list[Attempt]
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    queue_seconds: float | None
    run_seconds: float | None
    artifacts_expire_at: Moment | None
    expires_at: Moment | None
    links: dict[str, str]


class JobPage(BaseModel):
    items: list[Job]
    next_page_token: str | None


class ModelPage(BaseModel):
    items: list[Model]
    next_page_token: str | None


class BatchPage(BaseModel):
    items: list[Batch]
    next_page_token: str | None


class ArtifactItem(BaseModel):
    """One file of a finished job."""

    name: str
    role: str
    media_type: str
    size: int
    sha256: str
    href: str


class ArtifactList(BaseModel):
    items: list[ArtifactItem]
    expires_at: Moment | None


class LayerPage(BaseModel):
    items: list[dict[str, Any]]
    next_page_token: str | None


class Webhook(BaseModel):
    """A receiver; the secret is shown when it is made and never again."""

    id: str
    url: str
    events: list[str]
    secret: str | None = None
    created_at: Moment


class WebhookPage(BaseModel):
    items: list[Webhook]
    next_page_token: str | None


class Delivery(BaseModel):
    """One event on its way to a receiver."""

    id: str
    job_id: str
    event: str
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    status: int | None
    error: str
    next_at: Moment
    created_at: Moment
    finished_at: Moment | None


class DeliveryPage(BaseModel):
    items: list[Delivery]
    next_page_token: str | None


class Key(BaseModel):
    """An API key; `key` is shown when it is made and never again."""

    id: str
    name: str
    tenant: str
    scopes: list[str]
    created_at: Moment
    expires_at: Moment | None
    last_used_at: Moment | None
    revoked_at: Moment | None
    key: str | None = None


class KeyList(BaseModel):
    items: list[Key]
