"""Tests of the model settings: what `plan doctor` reports, and that the key is never shown."""

from typing import Any

import pytest

from plan_adapter.local.settings import Settings
from tests.agent.conftest import forget_model_servers
from tests.agent.server import Reply, says, scripted
from tests.cli.conftest import CommandResult, Plan
from tests.cli.drafting import KEY, TASK, configure
from tests.cli.test_run import TOOLS

__all__ = ["forget_model_servers"]

SENT_BACK = Reply(status=401, error=f"Incorrect API key provided: {KEY}")


@pytest.mark.parametrize("key", [KEY, f"{KEY}\n"], ids=["a key", "a key with the end of its line"])
def test_a_server_error_does_not_show_the_key(plan: Plan, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with scripted(SENT_BACK) as server:
        configure(monkeypatch, server.url.replace("://", "://ana:hunter2@"), key)
        for arguments in (("draft", TASK, *TOOLS), ("draft", TASK, "--json", *TOOLS), ("doctor", "--model")):
            result = plan(*arguments)
            assert result.code == 9
            assert "answers 401: " in result.err + result.out
            assert not [word for word in (KEY, "hunter2") if word in result.out + result.err]


def test_the_openai_key_is_not_shown_either(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(SENT_BACK) as server:
        for name, value in {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        result = plan("draft", TASK, "--model", "m", *TOOLS)
        assert (result.code, len(server.requests), KEY in result.err) == (9, 1, False)


def model_finding(result: CommandResult) -> dict[str, Any]:
    return next(finding for finding in result.lines if finding["what"].startswith(("language model", "no language model", "<OpenAIModel")))


def test_doctor_calls_the_model_only_with_the_option(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    unset = model_finding(plan("doctor", "--json"))
    assert (unset["ok"], "PLAN_ADAPTER_MODEL " in unset["hint"]) == (True, True)
    assert model_finding(plan("doctor", "--json", "--model"))["ok"] is False
    with scripted(says({"ready": True})) as server:
        configure(monkeypatch, server.url)
        found = model_finding(plan("doctor", "--json"))
        assert (found["ok"], found["what"], server.requests) == (True, f"language model 模型-1 at {server.url} is configured", [])


def test_doctor_says_how_the_model_answers_and_what_its_server_refuses(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(says({"ready": True}), knows=["json_object"], refuses=["reasoning_effort"]) as server:
        configure(monkeypatch, server.url)
        found = model_finding(plan("doctor", "--json", "--model"))
    assert found["ok"] is True
    assert found["what"].startswith(f"language model 模型-1 at {server.url} answers as `模型-1` on the rung json_object (")
    assert found["what"].endswith(", 3 requests)")
    assert found["hint"] == "refuses strict_schema, schema, reasoning_effort"


def test_doctor_says_why_the_model_cannot_be_reached(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "http://127.0.0.1:9/v1")
    found = model_finding(plan("doctor", "--json", "--model"))
    assert (found["ok"], "cannot be reached" in found["what"]) == (False, True)


def test_the_environment_is_read_on_each_creation_and_arguments_override_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("plan_adapter_groups", '{"sre": ["ana"]}')
    monkeypatch.setenv("PLAN_ADAPTER_APPROVERS", "ana, bo")
    settings = Settings(lease_seconds=5)
    assert (settings.groups, settings.approvers, settings.lease_seconds) == ({"sre": ["ana"]}, ("ana", "bo"), 5)
    monkeypatch.setenv("PLAN_ADAPTER_APPROVERS", "cy")
    assert (Settings().approvers, Settings(approvers=("di",)).approvers) == (("cy",), ("di",))
