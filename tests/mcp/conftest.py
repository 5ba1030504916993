"""A home of its own, and an agent that talks to its server in this process."""

from pathlib import Path

import pytest

from tests.mcp.desk import Desk


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """What a person has set up for an agent."""
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PLAN_ADAPTER_LOCAL_SERVER", "never")
    monkeypatch.setenv("DEPLOYED", str(tmp_path / "deployed.txt"))
    monkeypatch.delenv("PLAN_ADAPTER_MODEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)
