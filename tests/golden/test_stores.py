"""The upgrade test: runs that earlier versions of this package recorded are replayed, and go as they went."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.errors import RunNotFoundError
from plan_adapter.local.settings import Settings
from plan_adapter.replay import replay
from plan_adapter.runs import ReplayedRun
from plan_adapter.text.replay_text import difference_text
from plan_adapter.tools.registry import ToolRegistry
from tests.golden import session, stores
from tests.golden.tools import registry as golden_tools
from tests.postgres import PostgresServer

TOOLS = ToolRegistry.from_settings(())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """The home of a session that finds what the golden runs had."""
    with session.home(tmp_path / "golden") as folder:
        yield folder / "home"


async def replayed(store: PlanStore, tools: ToolRegistry) -> list[ReplayedRun]:
    """Return every run that can be replayed, against the version that it ran."""
    found = list[ReplayedRun]()
    for digest in sorted({run.digest for run in await store.runs(1000)}):
        try:
            replayed = await replay(await store.get(digest), tools, store, Settings(), runs=1000)
        except RunNotFoundError:  # its name in the store is another one
            continue
        found += [run for run in replayed.runs if run.run.digest == digest]
    return found


def assert_as_they_went(runs: list[ReplayedRun]) -> None:
    assert {run.run.id: [*map(difference_text, run.differences)] for run in runs if run.differences} == {}


async def test_the_runs_of_the_golden_session_go_as_they_went(home: Path) -> None:
    session.restored(home / "plans.db")
    async with PlanStore() as store:
        runs = await replayed(store, golden_tools)
    assert len(runs) >= 3
    assert_as_they_went(runs)


@pytest.mark.parametrize("name", stores.names("sqlite"))
async def test_runs_of_an_earlier_version_on_sqlite_go_as_they_went(name: str, home: Path) -> None:
    session.restored(home / "plans.db", stores.statements(name, "sqlite"))
    async with PlanStore() as store:
        runs = await replayed(store, TOOLS)
    assert len(runs) > 20
    assert_as_they_went(runs)


@pytest.mark.thorough
@pytest.mark.parametrize("name", stores.names("postgresql"))
async def test_runs_of_an_earlier_version_on_postgresql_go_as_they_went(
    name: str, home: Path, postgres_database: str, postgres_server: PostgresServer
) -> None:
    database = postgres_database.rpartition("/")[2]
    await asyncio.to_thread(postgres_server.execute, stores.statements(name, "postgresql"), database=database)
    async with PlanStore(postgres_database) as store:
        await store.upgrade()
        runs = await replayed(store, TOOLS)
    assert len(runs) > 20
    assert_as_they_went(runs)
