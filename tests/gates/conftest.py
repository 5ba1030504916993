"""Fixtures of the gate tests: SQLite by default, `make thorough` adds PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from plan_adapter import PlanStore
from tests.gates.world import World
from tests.store.conftest import ON_SQLITE_OR_THOROUGH, store_at


@pytest.fixture(params=ON_SQLITE_OR_THOROUGH)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store with the newest schema."""
    yield from store_at(request, tmp_path)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of this package for one test."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
async def world(store_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Return a store with tools that record their calls."""
    async with PlanStore(store_url) as store:
        world = World(store, store_url, tmp_path)
        yield world
        await world.close()
