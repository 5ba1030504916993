"""The model of the settings: what `plan doctor` says of it, and that its key is shown nowhere."""

from typing import Any

import pytest

from tests.agent.conftest import no_memory_of_servers
from tests.agent.server import Reply, says, scripted
from tests.cli.conftest import Plan, Said
from tests.cli.drafting import KEY, TASK, configure
from tests.cli.test_run import TOOLS

__all__ = ["no_memory_of_servers"]

SENT_BACK = Reply(status=401, error=f"Incorrect API key provided: {KEY}")


@pytest.mark.parametrize("key", [KEY, f"{KEY}\n"], ids=["a key", "a key with the end of its line"])
def test_an_error_of_the_server_shows_no_key(plan: Plan, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with scripted(SENT_BACK) as server:
        configure(monkeypatch, server.url.replace("://", "://ana:hunter2@"), key)
        for arguments in (("draft", TASK, *TOOLS), ("draft", TASK, "--json", *TOOLS), ("doctor", "--model")):
            said = plan(*arguments)
            assert said.code == 2
            assert "answers 401: " in said.err + said.out
            assert not [word for word in (KEY, "hunter2") if word in said.out + said.err]


def test_openais_own_key_is_not_shown_either(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(SENT_BACK) as server:
        for name, value in {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        said = plan("draft", TASK, "--model", "m", *TOOLS)
        assert (said.code, len(server.requests), KEY in said.err) == (2, 1, False)


def of_model(said: Said) -> dict[str, Any]:
    return next(finding for finding in said.lines if finding["what"].startswith(("language model", "no language model", "<OpenAIModel")))


def test_doctor_asks_no_model_without_the_option(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    unset = of_model(plan("doctor", "--json"))
    assert (unset["ok"], "PLAN_ADAPTER_MODEL " in unset["hint"]) == (True, True)
    assert of_model(plan("doctor", "--json", "--model"))["ok"] is False
    with scripted(says({"ready": True})) as server:
        configure(monkeypatch, server.url)
        found = of_model(plan("doctor", "--json"))
        assert (found["ok"], found["what"], server.requests) == (True, f"language model 模型-1 at {server.url} is configured", [])


def test_doctor_says_how_the_model_answers_and_what_its_server_refuses(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(says({"ready": True}), knows=["json_object"], refuses=["reasoning_effort"]) as server:
        configure(monkeypatch, server.url)
        found = of_model(plan("doctor", "--json", "--model"))
    assert found["ok"] is True
    assert found["what"].startswith(f"language model 模型-1 at {server.url} answers as `模型-1` on the rung json_object (")
    assert found["what"].endswith(", 3 requests)")
    assert found["hint"] == "refuses strict_schema, schema, reasoning_effort"


def test_doctor_says_why_a_model_cannot_be_asked(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "http://127.0.0.1:9/v1")
    found = of_model(plan("doctor", "--json", "--model"))
    assert (found["ok"], "cannot be reached" in found["what"]) == (False, True)
