"""The schema migrations for both databases. `plan_adapter.store.database.schema` runs them without an alembic.ini."""
