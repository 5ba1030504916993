"""Fixtures of the secret tests: each test has its own home and secrets."""

from pathlib import Path

import pytest

from tests.store.conftest import store, store_url

__all__ = ["store", "store_url"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the home folder of this package for one test."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
