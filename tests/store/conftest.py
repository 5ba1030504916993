"""Stores for tests: every test that asks for `store_url` or `store` runs on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from plan_adapter.store.store import PlanStore
from plan_adapter.store.tables import REVISION, REVISION_TABLE, metadata
from tests.postgres import PostgresServer, postgres_database, postgres_server

__all__ = ["postgres_database", "postgres_server"]


@pytest.fixture(scope="session")
def migrated(postgres_server: PostgresServer) -> str:
    """The name of a database with the newest schema; it is emptied after each test."""
    name = postgres_server.make_database()

    async def migrate() -> None:
        async with PlanStore(postgres_server.url(name)) as store:
            await store.upgrade()

    asyncio.run(migrate())
    return name


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store with the newest schema."""
    yield from store_at(request, tmp_path)


def store_at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty store on the kind of database that the fixture's parameter names."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'plans.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name: str = request.getfixturevalue("migrated")
    yield server.url(name)
    tables = ", ".join(table.name for table in metadata.sorted_tables)
    server.execute(f"SET lock_timeout = '20s'; TRUNCATE {tables}; UPDATE {REVISION_TABLE} SET version_num = '{REVISION}'", database=name)


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[PlanStore]:
    """An empty store."""
    async with PlanStore(store_url) as opened:
        yield opened


@pytest.fixture
def commits() -> Iterator[list[str]]:
    """A list to which every commit of a transaction adds an entry."""
    seen: list[str] = []

    def note(connection: Connection) -> None:
        seen.append(connection.dialect.name)

    event.listen(Engine, "commit", note)
    yield seen
    event.remove(Engine, "commit", note)
