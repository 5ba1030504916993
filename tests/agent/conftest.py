"""Fixtures of the agent's tests. What a test learns about its server is forgotten, because the next server may have the same port."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from plan_adapter import PlanStore
from plan_adapter.agent import openai_model
from tests.agent.releases import World
from tests.agent.server import ScriptedServer


@pytest.fixture(autouse=True)
def forget_model_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(openai_model, "_ENDPOINTS", {})


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PlanStore]:
    monkeypatch.setenv("PLAN_ADAPTER_HOME", str(tmp_path / "home"))
    async with PlanStore(f"sqlite:///{tmp_path / 'plans.db'}") as opened:
        yield opened


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a running server the model of the settings."""

    def configure(server: ScriptedServer) -> ScriptedServer:
        monkeypatch.setenv("PLAN_ADAPTER_MODEL", "模型-1")
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", server.url)
        return server

    return configure
