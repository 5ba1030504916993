"""Tests of drafts with goal steps: a model describes a goal where it cannot name the call."""

import pytest

from plan_adapter.agent.planner import Budget, Planner
from plan_adapter.agent.schema import draft_outline, draft_schema
from plan_adapter.drafts import Draft, PlanRequest
from tests.agent.goals import TOOLS
from tests.agent.questions import model_at
from tests.agent.server import ScriptedReply, says, scripted

GOAL = {"content": "让 web-1 恢复正常", "done_when": "web-1 answers again"}


def done(*steps: dict[str, object]) -> ScriptedReply:
    return says({"action": "plan_done", "speak": "", "reason": "", "description": "Heal web-1", "steps": [*steps]})


async def drafted(*script: ScriptedReply) -> Draft:
    with scripted(*script) as server:
        model = model_at(server.url)
        draft = await Planner(model, TOOLS, budget=Budget(rounds=3)).drafted(PlanRequest("Heal web-1"))
        await model.aclose()
    return draft


async def test_a_goal_step_is_drafted_with_the_tools_that_it_names() -> None:
    look = {"id": "see", "tool_name": "look", "description": "Look", "parameters": {"host": "web-1"}}
    draft = await drafted(done(look, {**GOAL, "id": "heal", "tools": ["look", "restart"], "depends_on": [0]}))
    assert draft.plan is not None, draft.problems
    heal = draft.plan.step("heal")
    assert (heal.goal, heal.done_when, heal.tools, heal.depends_on) == (*GOAL.values(), ["look", "restart"], ["see"])
    assert draft.plan.options.require_approval


@pytest.mark.parametrize("tools", [{}, {"tools": None}], ids=["left out", "null"])
async def test_a_goal_step_without_tools_gets_all_tools_of_the_planner(tools: dict[str, object]) -> None:
    draft = await drafted(done({**GOAL, **tools}))
    assert draft.plan is not None, draft.problems
    assert draft.plan.steps[0].tools == ["label", "look", "restart"]


async def test_a_goal_step_with_an_unknown_tool_is_corrected() -> None:
    draft = await drafted(done({**GOAL, "tools": ["look", "run_command"]}), done({**GOAL, "tools": ["look"]}))
    assert draft.plan is not None
    assert draft.plan.steps[0].tools == ["look"]
    assert "unknown-tool" in draft.calls[0].problems[0]


def test_the_schema_offers_goal_steps_with_the_tools_of_the_planner() -> None:
    kinds = draft_schema(TOOLS)["properties"]["steps"]["items"]["anyOf"]  # type: ignore[index,call-overload]
    goal = kinds[-1]
    assert goal["required"] == ["content", "done_when", "tools"]
    assert goal["properties"]["tools"]["items"]["enum"] == ["label", "look", "restart"]
    outline = draft_outline()["properties"]["steps"]["items"]["anyOf"]  # type: ignore[index,call-overload]
    assert [sorted(kind["required"]) for kind in outline][1] == ["content", "done_when", "tools"]
