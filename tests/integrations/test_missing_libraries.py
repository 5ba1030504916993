"""Tests of an installation without the library of an agent."""

import sys
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [("pydantic_ai", "pydantic_ai", "pydantic-ai"), ("langgraph", "langgraph", "langgraph"), ("openai_agents", "agents", "openai-agents")],
)
def test_a_missing_library_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, library: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"plan_adapter.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError) as raised:
        import_module(f"plan_adapter.integrations.{module}")
    assert str(raised.value).endswith(f"is not installed: `pip install 'prefect-plan-adapter[{extra}]'`")
