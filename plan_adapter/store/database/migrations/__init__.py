"""The schema migrations for both databases. `plan_adapter.store.database.schema_revision` runs them without an alembic.ini."""
