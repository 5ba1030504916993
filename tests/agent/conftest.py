"""What is learnt of one test's server is no knowledge of the next one's, which may have the same port."""

import pytest

from plan_adapter.agent import openai_model


@pytest.fixture(autouse=True)
def no_memory_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(openai_model, "_ENDPOINTS", {})
