"""`plan draft` with a scripted model: its answers, and the command that asks it."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.agent.server import Request, ScriptedServer
from tests.cli.conftest import Plan, Said
from tests.cli.test_run import TOOLS

KEY = "sk-canary-0123"
TASK = "问候世界两次"


def step(tool_name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tool_name": tool_name, "description": "问候", "parameters": parameters, **fields}


def done(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"action": "plan_done", "speak": "问候两次。", "reason": "", "description": "两次问候", "steps": [*steps], **fields}


FIRST, SECOND = step("greet", {"who": "世界"}, id="first"), step("greet", {"who": "大家"}, id="second", depends_on=["first"])
GOOD = done(FIRST, SECOND, constraints=[{"number": 1, "steps": ["first"], "before": ["second"]}])
WRONG = done(step("greet", {"wo": "世界"}))
QUESTION = {"action": "ask_user", "speak": "问候谁？", "reason": "缺名字"}


@pytest.fixture
def draft(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    """Runs `plan draft` with the tests' tools and the model of a server that is up."""

    def call(server: ScriptedServer, *arguments: str | Path) -> Said:
        configure(monkeypatch, server.url)
        said = plan("draft", *arguments, *TOOLS)
        assert KEY not in said.out + said.err
        return said

    return call


Drafting = Any


def configure(monkeypatch: pytest.MonkeyPatch, url: str, key: str = KEY) -> None:
    for name, value in {"": "模型-1", "_URL": url, "_KEY": key}.items():
        monkeypatch.setenv(f"PLAN_ADAPTER_MODEL{name}", value)


def tools_told(request: Request) -> set[str]:
    """The names of the tools that a request's prompt lists."""
    listed = request["messages"][1]["content"].split("tools (JSON):\n")[1].split("\n\n")[0]
    return {tool["name"] for tool in json.loads(listed)}


def resume_words(said: str) -> list[str]:
    """The words to type that a command told."""
    return shlex.split(said.split("continue with: plan ")[1].splitlines()[0])
