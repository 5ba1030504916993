"""The schema migrations for both databases. `plan_adapter.store.schema` runs them without an alembic.ini."""
