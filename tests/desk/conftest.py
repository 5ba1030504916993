"""Fixtures of the desk's tests: a world with runs that wait, and a desk behind a proxy that signs people in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plan_adapter.store.store import PlanStore
from tests.desk.people import Desk, running_desk
from tests.gates.conftest import home, store_url
from tests.gates.world import World

__all__ = ["home", "store_url"]


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")


@pytest.fixture
async def world(store_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A store with tools that record their calls."""
    async with PlanStore(store_url) as store:
        world = World(store, store_url, tmp_path)
        yield world
        await world.close()


@pytest.fixture
async def desk(world: World) -> AsyncIterator[Desk]:
    """A desk behind a proxy that signs people in."""
    async with running_desk(world.store, world.settings) as desk:
        yield desk
