"""Each test has a home of its own, and no secret of another one."""

from pathlib import Path

import pytest

from tests.store.conftest import store, store_url

__all__ = ["store", "store_url"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that this package keeps its things in."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
