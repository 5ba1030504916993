"""Entry point for alembic: runs the migrations on the caller's connection, inside the caller's transaction."""

from alembic import context

from plan_adapter.store.database.tables import REVISION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=REVISION_TABLE,
    render_as_batch=True,  # SQLite alters tables by copying them
)
context.run_migrations()
