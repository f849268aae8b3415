"""Run by Alembic: migrate on the connection that ``worker.database.schema`` hands over."""

from alembic import context

from worker.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=False,
)
context.run_migrations()
