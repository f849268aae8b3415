"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:

    op.create_table(
        "answers",
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_sha256", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("location", sa.String(length=300), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "idempotency_key", name=op.f("pk_answers")),
    )
    with op.batch_alter_table("answers", schema=None) as batch_op:
        batch_op.create_index("ix_answers_created_at", ["created_at"], unique=False)

    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("place", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_blobs")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("webhook_id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("secret", sa.String(length=100), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.Double(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.String(length=500), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.create_index("ix_deliveries_state", ["state", "next_at"], unique=False)
        batch_op.create_index("ix_deliveries_webhook_id", ["webhook_id", "created_at", "id"], unique=False)

    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("verdict", sa.String(length=12), nullable=True),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("spec_sha256", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("webhook", sa.JSON(), nullable=True),
        sa.Column("model_id", sa.String(length=40), nullable=False),
        sa.Column("retry_of", sa.String(length=40), nullable=True),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("deadline_s", sa.Double(), nullable=False),
        sa.Column("stage", sa.String(length=20), nullable=False),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("announced_at", sa.Double(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("summary", sa.JSON(), nullable=True),
        sa.Column("published_fence", sa.Integer(), nullable=True),
        sa.Column("last_event", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("artifacts_until", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_artifacts_until", ["artifacts_until"], unique=False)
        batch_op.create_index("ix_jobs_expires_at", ["expires_at"], unique=False)
        batch_op.create_index("ix_jobs_lease_until", ["lease_until"], unique=False)
        batch_op.create_index("ix_jobs_model_id", ["model_id"], unique=False)
        batch_op.create_index("ix_jobs_spec_sha256", ["spec_sha256"], unique=False)
        batch_op.create_index("ix_jobs_state", ["state", "not_before"], unique=False)
        batch_op.create_index("ix_jobs_tenant", ["tenant", "created_at", "id"], unique=False)

    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("last_used_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("entry", sa.String(length=1024), nullable=False),
        sa.Column("format", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    with op.batch_alter_table("models", schema=None) as batch_op:
        batch_op.create_index("ix_models_tenant", ["tenant", "created_at", "id"], unique=False)

    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("blob", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    with op.batch_alter_table("uploads", schema=None) as batch_op:
        batch_op.create_index("ix_uploads_expires_at", ["expires_at"], unique=False)

    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("secret", sa.String(length=100), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.create_index("ix_webhooks_tenant", ["tenant", "created_at", "id"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("device", sa.String(length=8), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("beat_at", sa.Double(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_table(
        "artifacts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("media_type", sa.String(length=100), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_artifacts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "name", name=op.f("pk_artifacts")),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(length=200), nullable=False),
        sa.Column("outcome", sa.String(length=40), nullable=False),
        sa.Column("stage", sa.String(length=20), nullable=False),
        sa.Column("node", sa.String(length=500), nullable=False),
        sa.Column("signal", sa.Integer(), nullable=False),
        sa.Column("exit_status", sa.Integer(), nullable=True),
        sa.Column("peak_rss", sa.BigInteger(), nullable=False),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "fence", name=op.f("pk_attempts")),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("generator", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name=op.f("fk_batches_sha256")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.create_index("ix_batches_sha256", ["sha256"], unique=False)
        batch_op.create_index("ix_batches_tenant", ["tenant", "created_at", "id"], unique=False)

    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_events")),
    )
    op.create_table(
        "holders",
        sa.Column("tenant", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("used_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name=op.f("fk_holders_sha256")),
        sa.PrimaryKeyConstraint("tenant", "sha256", name=op.f("pk_holders")),
    )
    with op.batch_alter_table("holders", schema=None) as batch_op:
        batch_op.create_index("ix_holders_sha256", ["sha256"], unique=False)

    op.create_table(
        "job_blobs",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_blobs_job_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name=op.f("fk_job_blobs_sha256")),
        sa.PrimaryKeyConstraint("job_id", "sha256", name=op.f("pk_job_blobs")),
    )
    with op.batch_alter_table("job_blobs", schema=None) as batch_op:
        batch_op.create_index("ix_job_blobs_sha256", ["sha256"], unique=False)

    op.create_table(
        "model_files",
        sa.Column("model_id", sa.String(length=40), nullable=False),
        sa.Column("path", sa.String(length=1024), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_files_model_id"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["sha256"], ["blobs.sha256"], name=op.f("fk_model_files_sha256")),
        sa.PrimaryKeyConstraint("model_id", "path", name=op.f("pk_model_files")),
    )
    with op.batch_alter_table("model_files", schema=None) as batch_op:
        batch_op.create_index("ix_model_files_sha256", ["sha256"], unique=False)


def downgrade() -> None:

    with op.batch_alter_table("model_files", schema=None) as batch_op:
        batch_op.drop_index("ix_model_files_sha256")

    op.drop_table("model_files")
    with op.batch_alter_table("job_blobs", schema=None) as batch_op:
        batch_op.drop_index("ix_job_blobs_sha256")

    op.drop_table("job_blobs")
    with op.batch_alter_table("holders", schema=None) as batch_op:
        batch_op.drop_index("ix_holders_sha256")

    op.drop_table("holders")
    op.drop_table("events")
    with op.batch_alter_table("batches", schema=None) as batch_op:
        batch_op.drop_index("ix_batches_tenant")
        batch_op.drop_index("ix_batches_sha256")

    op.drop_table("batches")
    op.drop_table("attempts")
    op.drop_table("artifacts")
    op.drop_table("workers")
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.drop_index("ix_webhooks_tenant")

    op.drop_table("webhooks")
    with op.batch_alter_table("uploads", schema=None) as batch_op:
        batch_op.drop_index("ix_uploads_expires_at")

    op.drop_table("uploads")
    op.drop_table("outbox")
    with op.batch_alter_table("models", schema=None) as batch_op:
        batch_op.drop_index("ix_models_tenant")

    op.drop_table("models")
    op.drop_table("keys")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_tenant")
        batch_op.drop_index("ix_jobs_state")
        batch_op.drop_index("ix_jobs_spec_sha256")
        batch_op.drop_index("ix_jobs_model_id")
        batch_op.drop_index("ix_jobs_lease_until")
        batch_op.drop_index("ix_jobs_expires_at")
        batch_op.drop_index("ix_jobs_artifacts_until")

    op.drop_table("jobs")
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.drop_index("ix_deliveries_webhook_id")
        batch_op.drop_index("ix_deliveries_state")

    op.drop_table("deliveries")
    op.drop_table("blobs")
    with op.batch_alter_table("answers", schema=None) as batch_op:
        batch_op.drop_index("ix_answers_created_at")

    op.drop_table("answers")
