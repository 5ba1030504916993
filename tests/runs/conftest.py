"""Fixtures of the run tests: a home folder for each test, stores on both databases, and the tools of the rollback tests."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from plan_adapter.local.settings import Settings
from tests.runs.cluster import Cluster
from tests.runs.drained import World
from tests.sql import Sql
from tests.store.conftest import ON_SQLITE_OR_THOROUGH, store_at


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of the package, empty at first."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
async def store(home: Path) -> AsyncIterator[PlanStore]:
    """Return the default store."""
    async with PlanStore() as store:
        yield store


@pytest.fixture
def cluster() -> Cluster:
    """Return a cluster without any calls yet."""
    return Cluster()


@pytest.fixture
def sql(home: Path) -> Sql:
    """Return the database of the default store."""
    return Sql(Settings().store_url)


@pytest.fixture
def world() -> World:
    """Return a pool of nodes that can be drained and put back."""
    return World()


@pytest.fixture(params=ON_SQLITE_OR_THOROUGH)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty store with the newest schema."""
    yield from store_at(request, tmp_path)


@pytest.fixture
async def any_store(store_url: str) -> AsyncIterator[PlanStore]:
    """Yield an empty store, once for each database."""
    async with PlanStore(store_url) as opened:
        yield opened
