"""Provides `harness`: a home folder, a store, and agents connected to a server in this process."""

from pathlib import Path

import pytest

from tests.mcp.harness import Harness


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Return a harness whose settings name its own home folder, and neither a Prefect server nor a model."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")
    monkeypatch.setenv("DEPLOYED", str(tmp_path / "deployed.txt"))
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return Harness(tmp_path)
