"""Indexes for what is asked often: the queue in its order, open jobs and bytes of a tenant, what has expired."""

from alembic import op

revision = "0002"
down_revision = "0001"

NEW = (
    ("ix_jobs_state", "jobs", ["state", "device", "created_at"]),
    ("ix_jobs_tenant_state", "jobs", ["tenant", "state", "created_at", "id"]),
    ("ix_blobs_place", "blobs", ["place"]),
    ("ix_uploads_tenant", "uploads", ["tenant", "blob"]),
    ("ix_models_used_at", "models", ["used_at"]),
    ("ix_batches_used_at", "batches", ["used_at"]),
    ("ix_deliveries_finished_at", "deliveries", ["finished_at"]),
)


def upgrade() -> None:
    op.drop_index("ix_jobs_state", "jobs")
    for name, table, columns in NEW:
        op.create_index(name, table, columns)


def downgrade() -> None:
    for name, table, _ in NEW:
        op.drop_index(name, table)
    op.create_index("ix_jobs_state", "jobs", ["state", "not_before"])
