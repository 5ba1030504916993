"""Attacks run in the world of the gates' tests: on SQLite and on PostgreSQL."""

from tests.gates.conftest import home, migrated, postgres_database, postgres_server, store_url, world

__all__ = ["home", "migrated", "postgres_database", "postgres_server", "store_url", "world"]
