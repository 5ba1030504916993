"""A step with a goal names no tool. A model calls tools in rounds until the goal is met; each write waits for a person."""

from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.gates import ApprovalRequest, CallbackApprover
from plan_adapter.runs import arun_plan
from plan_adapter.store import load_plan
from tests.agent.server import says, scripted

DOCUMENT = """\
description: Look after the notes
options: {require_approval: false}
steps:
  - id: report
    goal: Post a note that says hello
    tools: [look, post]
"""

notes: list[str] = []


@tool(effect="read")
def look() -> list[str]:
    """Read the notes."""
    return notes


@tool(effect="write")
def post(note: str) -> None:
    """Post a note."""
    notes.append(note)


tools = ToolRegistry([look, post])


def decides(action: str, tool_name: str = "", **fields: Any) -> Any:
    """Return a model's answer for one round."""
    call = {"tool_call": {"name": tool_name, "arguments": fields.pop("arguments", {})}} if tool_name else {}
    return says({"action": action, "speak": "Working on it.", "reason": "the goal", **call, **fields})


POST = decides("confirm", "post", arguments={"note": "hello"})


@pytest.fixture
def plan() -> ExecutionPlan:
    """Return the plan, with no notes yet."""
    notes.clear()
    return load_plan(DOCUMENT)


async def test_a_write_of_the_model_waits_for_a_person_and_each_round_is_recorded(
    plan: ExecutionPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ApprovalRequest] = []

    def confirm(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    with scripted(decides("continue", "look"), POST, decides("done", goal_check="E2 shows that it was posted")) as model:
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", model.url)
        monkeypatch.setenv("PLAN_ADAPTER_MODEL", "any-model")
        run = await arun_plan(plan, tools=tools, approver=CallbackApprover(confirm, by="ana"), offline=True)

    assert (run.status, notes) == ("completed", ["hello"])
    assert [request.step_id for request in asked] == ["report"]
    assert "hello" in asked[0].text
    result: Any = run.step("report").result
    assert (result["summary"], result["rounds"]) == ("Working on it.", 3)
    async with PlanStore() as store:
        calls = [(attempt.kind, attempt.tool_name) for attempt in await store.attempts(run.id) if attempt.kind == "step"]
        assert calls == [("step", "look"), ("step", "post"), ("step", "goal")]


async def test_a_rejected_write_is_not_done_and_the_model_reads_why(plan: ExecutionPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    gives_up = decides("abort", abort={"reason": "blocked", "message": "I may not post."})
    with scripted(POST, gives_up) as model:
        monkeypatch.setenv("PLAN_ADAPTER_MODEL_URL", model.url)
        monkeypatch.setenv("PLAN_ADAPTER_MODEL", "any-model")
        approver = CallbackApprover(lambda _: ("reject", "not today"), by="ana")
        run = await arun_plan(plan, tools=tools, approver=approver, offline=True)
        assert "not today" in str(model.requests[1])

    assert (run.status, notes) == ("failed", [])
