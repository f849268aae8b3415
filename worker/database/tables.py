"""The tables.  Times are seconds since 1970 by the database's own clock; sizes are bytes."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Id = String(40)
_Digest = String(64)
_Serial = BigInteger().with_variant(Integer, "sqlite")

keys = Table(
    "keys",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("name", String(200), nullable=False),
    Column("secret_sha256", _Digest, nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("last_used_at", Double),
    Column("revoked_at", Double),
)

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", _Digest, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("place", String(200), nullable=False),
    Column("created_at", Double, nullable=False),
    Index("ix_blobs_place", "place"),
)

holders = Table(
    "holders",
    metadata,
    Column("tenant", _Id, primary_key=True),
    Column("sha256", _Digest, ForeignKey("blobs.sha256"), primary_key=True),
    Column("used_at", Double, nullable=False),
    Index("ix_holders_sha256", "sha256"),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", _Digest),
    Column("filename", String(255), nullable=False),
    Column("blob", _Digest),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Index("ix_uploads_expires_at", "expires_at"),
    Index("ix_uploads_tenant", "tenant", "blob"),
)

models = Table(
    "models",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("entry", String(1024), nullable=False),
    Column("format", String(20), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    Index("ix_models_tenant", "tenant", "created_at", "id"),
    Index("ix_models_used_at", "used_at"),
)

model_files = Table(
    "model_files",
    metadata,
    Column("model_id", _Id, ForeignKey("models.id", ondelete="CASCADE"), primary_key=True),
    Column("path", String(1024), primary_key=True),
    Column("sha256", _Digest, ForeignKey("blobs.sha256"), nullable=False),
    Column("size", BigInteger, nullable=False),
    Index("ix_model_files_sha256", "sha256"),
)

batches = Table(
    "batches",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("filename", String(255), nullable=False),
    Column("sha256", _Digest, ForeignKey("blobs.sha256")),
    Column("size", BigInteger, nullable=False),
    Column("generator", JSON),
    Column("created_at", Double, nullable=False),
    Column("used_at", Double, nullable=False),
    Index("ix_batches_tenant", "tenant", "created_at", "id"),
    Index("ix_batches_sha256", "sha256"),
    Index("ix_batches_used_at", "used_at"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("name", String(200), nullable=False),
    Column("state", String(12), nullable=False),
    Column("verdict", String(12)),
    Column("device", String(8), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("spec_sha256", _Digest, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("webhook", JSON),
    Column("model_id", _Id, nullable=False),
    Column("retry_of", _Id),
    Column("pinned", Boolean, nullable=False),
    Column("deadline_s", Double, nullable=False),
    Column("stage", String(20), nullable=False),
    Column("done", BigInteger, nullable=False),
    Column("total", BigInteger, nullable=False),
    Column("fence", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("worker", String(200), nullable=False),
    Column("lease_until", Double),
    Column("not_before", Double, nullable=False),
    Column("announced_at", Double, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("error", JSON),
    Column("summary", JSON),
    Column("published_fence", Integer),
    Column("last_event", Integer, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("artifacts_until", Double),
    Column("expires_at", Double),
    Index("ix_jobs_tenant", "tenant", "created_at", "id"),
    Index("ix_jobs_tenant_state", "tenant", "state", "created_at", "id"),
    Index("ix_jobs_state", "state", "device", "created_at"),
    Index("ix_jobs_lease_until", "lease_until"),
    Index("ix_jobs_expires_at", "expires_at"),
    Index("ix_jobs_artifacts_until", "artifacts_until"),
    Index("ix_jobs_spec_sha256", "spec_sha256"),
    Index("ix_jobs_model_id", "model_id"),
)

job_blobs = Table(
    "job_blobs",
    metadata,
    Column("job_id", _Id, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("sha256", _Digest, ForeignKey("blobs.sha256"), primary_key=True),
    Index("ix_job_blobs_sha256", "sha256"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", _Id, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("fence", Integer, primary_key=True),
    Column("worker", String(200), nullable=False),
    Column("outcome", String(40), nullable=False),
    Column("stage", String(20), nullable=False),
    Column("node", String(500), nullable=False),
    Column("signal", Integer, nullable=False),
    Column("exit_status", Integer),
    Column("peak_rss", BigInteger, nullable=False),
    Column("log", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double),
)

events = Table(
    "events",
    metadata,
    Column("job_id", _Id, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("body", JSON, nullable=False),
    Column("at", Double, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("job_id", _Id, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("media_type", String(100), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", _Digest, nullable=False),
)

outbox = Table(
    "outbox",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("job_id", _Id, nullable=False),
    Column("device", String(8), nullable=False),
    Column("created_at", Double, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("id", String(200), primary_key=True),
    Column("device", String(8), nullable=False),
    Column("started_at", Double, nullable=False),
    Column("beat_at", Double, nullable=False),
    Column("facts", JSON, nullable=False),
)

answers = Table(
    "answers",
    metadata,
    Column("tenant", _Id, primary_key=True),
    Column("idempotency_key", String(255), primary_key=True),
    Column("request_sha256", _Digest, nullable=False),
    Column("status", Integer, nullable=False),
    Column("location", String(300), nullable=False),
    Column("body", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("ix_answers_created_at", "created_at"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("url", String(2000), nullable=False),
    Column("secret", String(100), nullable=False),
    Column("events", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("ix_webhooks_tenant", "tenant", "created_at", "id"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("tenant", _Id, nullable=False),
    Column("webhook_id", _Id, nullable=False),
    Column("job_id", _Id, nullable=False),
    Column("event", String(40), nullable=False),
    Column("url", String(2000), nullable=False),
    Column("secret", String(100), nullable=False),
    Column("body", Text, nullable=False),
    Column("state", String(10), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", Double, nullable=False),
    Column("status", Integer),
    Column("error", String(500), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double),
    Index("ix_deliveries_state", "state", "next_at"),
    Index("ix_deliveries_finished_at", "finished_at"),
    Index("ix_deliveries_webhook_id", "webhook_id", "created_at", "id"),
)
