"""Helpers for `plan draft` with a scripted model: its answers, and a fixture that runs the command."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.agent.server import Request, ScriptedServer
from tests.cli.conftest import CommandResult, Plan
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
    """Return a function that runs `plan draft` with the tests' tools and the model of a scripted server."""

    def call(server: ScriptedServer, *arguments: str | Path) -> CommandResult:
        configure(monkeypatch, server.url)
        result = plan("draft", *arguments, *TOOLS)
        assert KEY not in result.out + result.err
        return result

    return call


Drafting = Any


def configure(monkeypatch: pytest.MonkeyPatch, url: str, key: str = KEY) -> None:
    for name, value in {"": "模型-1", "_URL": url, "_KEY": key}.items():
        monkeypatch.setenv(f"PLAN_ADAPTER_MODEL{name}", value)


def tools_in_prompt(request: Request) -> set[str]:
    """Return the names of the tools that the prompt of a request lists."""
    listed = request["messages"][1]["content"].split("tools (JSON):\n")[1].split("\n\n")[0]
    return {tool["name"] for tool in json.loads(listed)}


def resume_arguments(stderr: str) -> list[str]:
    """Return the arguments of the resume command that `stderr` suggests."""
    return shlex.split(stderr.split("continue with: plan ")[1].splitlines()[0])
