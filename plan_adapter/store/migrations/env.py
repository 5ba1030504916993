"""What alembic runs: the migrations on the connection, and in the transaction, of its caller."""

from alembic import context

from plan_adapter.store.tables import REVISION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=REVISION_TABLE,
    render_as_batch=True,  # SQLite alters tables by copying them
)
context.run_migrations()
