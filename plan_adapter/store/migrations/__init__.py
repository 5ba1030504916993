"""The history of the schema, for both databases; run by `plan_adapter.store.schema`, without an alembic.ini."""
