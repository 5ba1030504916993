"""Stores for tests: every test that asks for `store_url` or `store` runs on SQLite, and on PostgreSQL if its file is in ON_BOTH.

`make thorough` runs all others on PostgreSQL, too.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event

from plan_adapter.store.store import PlanStore
from tests.postgres import PostgresServer
from tests.sql import Sql

on_both_databases = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
"""For a test outside this folder that depends on the database: a race, a count, a trigger."""

ON_SQLITE_OR_THOROUGH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)]
"""The parameters of `store_url` in such a test."""


ON_BOTH = (
    *("alterations", "changes", "claims", "erasing", "gate_answers", "gate_messages", "gates", "migrations", "retention", "runs"),
    "trigger_events",
)
"""The files of this folder that test what differs between the databases: locks, races, triggers and clocks."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave PostgreSQL to `make thorough` in the files of this folder that are not in ON_BOTH."""
    names = {f"test_{name}.py" for name in ON_BOTH}
    for item in items:
        on = getattr(item, "callspec", None)
        is_elsewhere = item.path.parent != Path(__file__).parent or item.path.name in names
        if not is_elsewhere and on is not None and "postgresql" in on.params.values():
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store with the newest schema."""
    yield from store_at(request, tmp_path)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty SQLite file with the newest schema, to be copied: that takes a tenth of the time of creating one."""
    path = tmp_path_factory.mktemp("migrated") / "plans.db"

    async def migrate() -> None:
        async with PlanStore(f"sqlite:///{path}") as store:
            await store.upgrade()

    asyncio.run(migrate())
    return path


def store_at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty store on the kind of database that the fixture's parameter names."""
    if request.param == "sqlite":
        file: Path = request.getfixturevalue("migrated_file")
        yield f"sqlite:///{shutil.copy(file, tmp_path / 'plans.db')}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name: str = request.getfixturevalue("migrated")
    yield server.url(name)
    server.empty(name)


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[PlanStore]:
    """An empty store."""
    async with PlanStore(store_url) as opened:
        yield opened


@pytest.fixture
def sql(store_url: str) -> Sql:
    """The database of the store."""
    return Sql(store_url)


@pytest.fixture
def commits() -> Iterator[list[str]]:
    """A list to which every commit of a transaction adds an entry."""
    seen: list[str] = []

    def note(connection: Connection) -> None:
        seen.append(connection.dialect.name)

    event.listen(Engine, "commit", note)
    yield seen
    event.remove(Engine, "commit", note)
