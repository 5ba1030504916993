"""Each test has a home of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from plan_adapter import PlanStore


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that this package keeps its things in."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
async def store(home: Path) -> AsyncIterator[PlanStore]:
    """Return the default store."""
    async with PlanStore() as store:
        yield store
