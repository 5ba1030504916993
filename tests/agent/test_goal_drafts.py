"""Tests of drafts with goal steps: a model describes a goal where it cannot name the call."""

from typing import Any

import pytest

from plan_adapter import PlanStore
from plan_adapter.agent.answer_schemas import draft_outline, draft_schema
from plan_adapter.agent.planner import Budget, Planner
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.drafts import Draft, PlanRequest
from plan_adapter.runner import arun_plan
from plan_adapter.store import PlanStatus, StepStatus
from tests.agent.goal_players import Answer, Seen, blocks, decides, playing
from tests.agent.goals import TOOLS, call
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


def goal(**fields: Any) -> dict[str, Any]:
    return {**GOAL, "tools": ["look"], **fields}


LOOK = {"tool_name": "look", "description": "Look", "parameters": {"host": "web-1"}}

ORDERS: dict[str, tuple[list[dict[str, Any]], list[list[str]]]] = {  # the steps as written, and the dependencies of each
    "only goals": ([goal(id="a"), goal(id="b"), goal(id="c")], [[], ["a"], ["b"]]),
    "null means the same": ([goal(id="a"), goal(id="b", depends_on=None)], [[], ["a"]]),
    "a goal after a call": ([LOOK | {"id": "a"}, goal(id="b")], [[], ["a"]]),
    "a call after a goal": ([goal(id="a"), LOOK | {"id": "b"}], [[], []]),
    "none, as written": ([goal(id="a"), goal(id="b", depends_on=[])], [[], []]),
    "others, as written": ([goal(id="a"), goal(id="b", depends_on=[]), goal(id="c", depends_on=["a"])], [[], [], ["a"]]),
    "without ids": ([goal(), goal()], [[], ["step_1"]]),
    "the one before waits for it": ([goal(id="a", depends_on=["b"]), goal(id="b")], [["b"], []]),
    "the one before uses its result": (
        [LOOK | {"id": "a", "parameters": {"host": "${{ steps.b.result.summary }}"}}, goal(id="b")],
        [[], []],
    ),
    "the one before waits for it through another": (
        [goal(id="a", depends_on=["c"]), goal(id="b"), goal(id="c", depends_on=[])],
        [["c"], ["a"], []],
    ),
}


@pytest.mark.parametrize("kind", ORDERS)
async def test_a_goal_depends_on_the_step_before_it_unless_the_model_says_otherwise(kind: str) -> None:
    steps, expected = ORDERS[kind]
    draft = await drafted(done(*steps))
    assert draft.plan is not None, draft.problems
    assert ([step.depends_on for step in draft.plan.steps], draft.repairs) == (expected, 0)


async def test_a_dependency_that_the_model_left_out_is_not_missed_in_its_correction() -> None:
    draft = await drafted(done(goal(id="a"), goal(id="b", tools=["run_command"])), done(goal(id="a"), goal(id="b")))
    assert draft.plan is not None
    assert ([step.depends_on for step in draft.plan.steps], draft.repairs) == ([[], ["a"]], 1)


def pass_on(what: Seen) -> Answer:
    """Look at the host that the step before found, or at web-1, and end the step."""
    if not what.evidence:
        before = blocks(what.text).get("context", {}).get("steps", {})
        host = before["step_1"]["summary"] if before else "web-1"
        return decides("continue", tool_call=call("look", host=host))
    return what.end("E1 shows it") | {"speak": "web-2"}


async def test_the_model_of_a_plan_in_words_sees_the_result_of_the_step_before(store: PlanStore, configured: Any) -> None:
    plan = {"action": "plan_done", "speak": "", "reason": "", "description": "Follow", "steps": [goal(), goal()]}
    with scripted(playing(pass_on, plan=plan)) as server:
        configured(server)
        model = model_at(server.url)
        draft = await Planner(model, TOOLS).drafted(PlanRequest("Look at the host that web-1 names"))
        await model.aclose()
        assert draft.plan is not None, draft.problems
        approver = CallbackApprover(lambda _: True, by="ana")
        run = await arun_plan(draft.plan, tools=TOOLS, store=store, offline=True, approver=approver)
    assert (run.status, [step.status for step in run.steps]) == (PlanStatus.COMPLETED, [StepStatus.COMPLETED] * 2)
    first, second = (step.result for step in run.steps)
    assert [first["results"]["look"], second["results"]["look"]] == ["web-1 None 10", "web-2 None 10"]
    shown = next(str(request["messages"]) for request in server.requests if '"step":"step_2"' in str(request["messages"]))
    assert all(text in shown for text in ('"summary":"web-2"', "web-1 None 10", '"id":"E1"'))
