"""What is learnt of one test's server is no knowledge of the next one's, which may have the same port."""

from collections.abc import Iterator

import pytest

from plan_adapter.agent.openai_model import forget_endpoints


@pytest.fixture(autouse=True)
def no_memory_of_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    forget_endpoints()
    yield
    forget_endpoints()
