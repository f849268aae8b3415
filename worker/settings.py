"""Every setting of the service, read once from the environment.

Names carry the prefix ``NARROWCAST_``; ``REDIS_URL`` and ``DATABASE_URL`` are also understood without it.  A
wrong value ends the start with a message that names the variable.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from converter.errors import OptionError

MIB = 2**20
GIB = 2**30


class Settings(BaseSettings):
    """Settings of API, workers and sweeper; times in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="NARROWCAST_", extra="ignore", frozen=True)

    # where things are
    data_dir: Path = Field(Path("narrowcast-data"), description="folder of database, uploads, store and work")
    work_dir: Path | None = Field(None, description="scratch folder of a worker; default: work/ in the data folder")
    database_url: str = Field(
        "",
        validation_alias=AliasChoices("NARROWCAST_DATABASE_URL", "DATABASE_URL"),
        description="SQLAlchemy URL; default: SQLite in the data folder",
    )
    redis_url: str = Field(
        "",
        validation_alias=AliasChoices("NARROWCAST_REDIS_URL", "REDIS_URL"),
        description="broker; `serve` starts one of its own when empty",
    )
    public_url: str = Field("", description="how clients reach the API; its name is answered too")
    trusted_hosts: Annotated[tuple[str, ...], NoDecode] = Field((), description="further Host names that are answered")

    # access
    auth: Literal["auto", "key", "none"] = Field("auto", description="auto: none on loopback, keys elsewhere")
    rate_per_minute: int = Field(6000, ge=0, description="requests per key and minute and API process; 0: no limit")
    quota_open_jobs: int = Field(10_000, ge=0, description="open jobs per tenant; 0: no limit")
    quota_bytes: int = Field(0, ge=0, description="stored bytes per tenant; 0: no limit")

    # sizes
    max_upload_bytes: int = Field(64 * GIB, ge=1, description="largest single file")
    max_multipart_bytes: int = Field(64 * MIB, ge=1, description="largest multipart job request, held in memory")
    max_json_bytes: int = Field(2 * MIB, ge=1024, description="largest JSON body")
    max_files: int = Field(1000, ge=1, description="files per model and batches per job")
    disk_reserve_bytes: int = Field(256 * MIB, ge=0, description="space that uploads must leave free")
    sync_every_bytes: int = Field(64 * MIB, ge=1, description="bytes of an upload in the page cache before a sync")
    direct_bytes: int = Field(64 * MIB, ge=0, description="an upload with so much to come leaves the page cache out")
    slow_after_s: float = Field(
        30, gt=0, description="how long a body may stay below the slowest rate before it is ended"
    )
    slow_bytes_per_s: int = Field(1024, ge=1, description="slowest rate of a body, on average over `SLOW_AFTER_S`")

    # runs
    device: Literal["cpu", "cuda", "npu"] = Field("cpu", description="device class and queue of this worker")
    threads: int = Field(0, ge=0, description="threads of the engine; 0: all cores of this machine")
    concurrency: int = Field(1, ge=1, description="jobs at the same time in one worker: one per device")
    child_command: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="program (JSON list) that runs instead of the engine and speaks its protocol"
    )
    memory_limit_bytes: int = Field(0, ge=0, description="resident memory of one run; 0: 80 % of the machine")
    file_size_limit_bytes: int = Field(128 * GIB, ge=0, description="largest file one run may write; 0: no limit")
    default_deadline_s: float = Field(3600, gt=0, description="run time of a job that asks for none")
    max_deadline_s: float = Field(6 * 3600, gt=0, description="longest run time a job may ask for")
    stop_grace_s: float = Field(10, ge=0, description="between SIGTERM and SIGKILL of a run")

    # reliability
    lease_s: float = Field(60, gt=0, description="a run whose worker is silent for so long is given to another")
    beat_s: float = Field(10, gt=0, description="how often a worker renews the lease")
    watch_s: float = Field(0.2, gt=0, description="how often a worker looks at memory, deadline and progress")
    cancel_poll_s: float = Field(1, gt=0, description="how often a worker looks for a cancel request")
    max_attempts: int = Field(3, ge=1, description="claims of one job before it fails for good")
    retry_delays_s: Annotated[tuple[float, ...], NoDecode] = Field(
        (0, 15), description="wait before the second, third, … attempt"
    )
    sweep_s: float = Field(10, gt=0, description="how often the sweeper looks for lost work")
    requeue_after_s: float = Field(60, ge=0, description="age at which a queued job is announced again")
    sweep_in_api: bool = Field(True, description="the API process sweeps; off where a sweeper of its own runs")
    queue_ttl_s: float = Field(7 * 86400, gt=0, description="a job queued for so long expires")
    visibility_timeout_s: int = Field(12 * 3600, ge=1, description="broker redelivery; at least 2 x max_deadline_s")
    soft_shutdown_s: float = Field(60, ge=0, description="time a stopping worker gives to its running job")
    publish_retry_s: float = Field(300, ge=0, description="how long a finished run tries to reach the database")
    worker_beat_s: float = Field(5, gt=0, description="how often the queue consumer writes its heartbeat row")

    # keeping
    keep_uploads_s: float = Field(86400, gt=0, description="life of an unfinished upload")
    keep_blobs_s: float = Field(86400, gt=0, description="life of a blob no model, batch or job refers to")
    keep_models_s: float = Field(30 * 86400, gt=0, description="life of a model or batch after its last use")
    keep_artifacts_s: float = Field(7 * 86400, gt=0, description="life of a finished job's files")
    keep_jobs_s: float = Field(30 * 86400, gt=0, description="life of a finished job's record")
    keep_answers_s: float = Field(86400, gt=0, description="life of a stored answer to an Idempotency-Key")
    retention_s: float = Field(60, gt=0, description="how often expired things are removed")
    orphan_age_s: float = Field(3600, ge=0, description="age at which files without a row are removed")

    # following and webhooks
    max_wait_s: float = Field(60, gt=0, description="longest `Prefer: wait` and long poll")
    follow_s: float = Field(0.05, gt=0, description="how often the API looks for news of followed jobs")
    sse_heartbeat_s: float = Field(15, gt=0, description="comment line on an idle event stream")
    webhook_timeout_s: float = Field(10, gt=0, description="time a receiver has to answer")
    webhook_poll_s: float = Field(1, gt=0, description="how often due deliveries are looked for")
    webhook_delays_s: Annotated[tuple[float, ...], NoDecode] = Field(
        (5, 30, 120, 600, 3600, 6 * 3600, 12 * 3600), description="wait between delivery attempts"
    )
    webhook_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="private networks (CIDR) receivers may live in; plain http is allowed there too"
    )

    @field_validator(
        "child_command", "retry_delays_s", "webhook_delays_s", "webhook_networks", "trusted_hosts", mode="before"
    )
    @classmethod
    def _list(cls, value: object) -> object:
        """A JSON list, or words separated by commas."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        return json.loads(text) if text.startswith("[") else [part.strip() for part in text.split(",") if part.strip()]

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite:///{self.data_dir.absolute() / 'narrowcast.db'}"

    @property
    def store_dir(self) -> Path:
        return self.data_dir / "store"

    @property
    def uploads_dir(self) -> Path:
        return self.data_dir / "uploads"

    @property
    def scratch_dir(self) -> Path:
        return self.work_dir or self.data_dir / "work"


def read_settings(**overrides: object) -> Settings:
    """The settings of this process.

    Raises:
        OptionError: a variable has a value that cannot be used; the message names it.
    """
    try:
        return Settings(**overrides)  # type: ignore[arg-type]
    except (ValidationError, json.JSONDecodeError) as error:
        raise OptionError(f"the service's settings cannot be read: {error}") from error
