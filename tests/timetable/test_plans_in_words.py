"""Tests of plans in words, as SmartFlow's planner writes them: a model drafts them, a person approves, and each step is a goal."""

from collections.abc import Callable
from typing import Any

import pytest

from deployments.timetable import week
from plan_adapter import PlanStore
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.model.drafts import PlanRequest
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.store import PlanStatus, StepStatus
from tests.agent.goal_players import Answer, Seen, reads, writes
from tests.agent.server import ScriptedServer, says, scripted
from tests.timetable.pursuit import Person, placed, places_a_task, pursue

pytestmark = pytest.mark.usefixtures("timetable")

TASK = "看看这周的安排，把高数作业排进去，再确认一下"
PLAN = {
    "action": "plan_done",
    "speak": "我打算：1. 看安排2. 排高数作业3. 确认",
    "reason": "三步可以完成",
    "plan_steps": [
        {"content": "查看本周的空闲时段", "done_when": "知道每天有几个空闲时段"},
        {"content": "把高数作业安排到星期四", "done_when": "高数作业在星期四有一个时段"},
        {"content": "确认安排无误"},
    ],
}


def checks_overview(seen: Seen) -> Answer:
    return seen.end(f"{seen.proof('get_overview')} 显示了空闲时段") if seen.evidence else reads("get_overview")


def confirms(seen: Seen) -> Answer:
    return seen.end(f"{seen.proof('list_tasks')} 显示了安排") if seen.evidence else reads("list_tasks", status="placed")


async def drafted(plan: Answer) -> ExecutionPlan:
    with scripted(says(plan)) as server:
        model = OpenAIModel("m", base_url=server.url)
        draft = await Planner(model, week.TOOLS).drafted(PlanRequest(TASK))
        await model.aclose()
    assert draft.plan is not None, draft.problems
    return draft.plan


async def test_a_plan_in_words_is_drafted_approved_and_run(
    store: PlanStore, configured: Callable[[ScriptedServer], ScriptedServer]
) -> None:
    plan = await drafted(PLAN)
    assert [(step.goal, step.done_when) for step in plan.steps] == [(step["content"], step.get("done_when")) for step in PLAN["plan_steps"]]
    assert all(step.tools == week.TOOLS.names() for step in plan.steps)
    players = dict(zip((step.id for step in plan.steps), (checks_overview, places_a_task(day=4), confirms), strict=True))
    person = Person()
    done = await pursue(lambda seen: players[seen.now["step"]](seen), store, configured, plan=plan, person=person)
    assert done.run.status is PlanStatus.COMPLETED
    assert {step.status for step in done.run.steps} == {StepStatus.COMPLETED}
    assert placed() == {"高数作业": (4, 1)}
    assert [request.step_id is None for request in person.asked] == [True, False]
    assert "把高数作业安排到星期四" in person.asked[0].text


async def test_a_plan_can_mix_calls_and_goals_and_guard_the_order(
    store: PlanStore, configured: Callable[[ScriptedServer], ScriptedServer], full: Any
) -> None:
    plan = await drafted(
        {
            "action": "plan_done",
            "speak": "",
            "reason": "",
            "description": "重新安排英语听力，不打乱顺序",
            "steps": [
                {"id": "order", "tool_name": "get_order", "description": "记下顺序", "parameters": {}},
                {
                    "id": "rearrange",
                    "content": "把英语听力移到星期五",
                    "done_when": "英语听力在星期五",
                    "tools": ["list_tasks", "find_free", "move"],
                    "depends_on": [0],
                },
                {
                    "id": "guard",
                    "tool_name": "check_order",
                    "description": "顺序没有被打乱",
                    "parameters": {"baseline": "${{ steps.order.result }}"},
                    "done_when": "${{ result.kept }}",
                    "depends_on": ["rearrange"],
                },
            ],
        }
    )

    def moves(seen: Seen) -> Answer:
        if proof := seen.proof("move"):
            return seen.end(f"{proof}: 已移到星期五")
        assert "高数作业" in seen.text  # the result of the first step is part of the context
        return writes("move", task=7, day=5, slot=1)

    done = await pursue(moves, store, configured, plan=plan)
    assert done.run.status is PlanStatus.COMPLETED
    assert placed()["英语听力"] == (5, 1)
    assert done.run.step("guard").result == {"kept": True, "moved": []}
