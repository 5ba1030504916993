"""Runs goals of the timetable with a model behind a real server and a person who answers the gates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from deployments.timetable import week
from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.approvals import ApprovalRequest
from plan_adapter.runs import arun_plan
from plan_adapter.store import load_plan
from tests.agent.goal_players import Answer, Player, Seen, Verifier, playing, reads, writes
from tests.agent.server import Reply, Request, ScriptedServer, scripted

PLACE = """
name: 排课
description: 安排高数作业
options: {require_approval: false}
steps:
  - id: schedule
    goal: 把高数作业安排到星期二的一个空闲时段
    done_when: 高数作业在星期二有一个时段，并且有写入回执证明
    tools: [list_tasks, find_free, get_overview, place, move, unplace]
    max_rounds: 12
"""

DAY = 2


@dataclass
class Person:
    """Answers every gate and records the requests. `answer` answers approval requests, a text rejects; `reply` answers questions."""

    answer: Callable[[ApprovalRequest], Any] = lambda _: True
    reply: Mapping[str, JsonValue] = field(default_factory=lambda: {"answer": "不知道"})
    asked: list[ApprovalRequest] = field(default_factory=list[ApprovalRequest])

    def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        if request.kind == "question":
            return self.reply
        answer = self.answer(request)
        return ("reject", answer) if isinstance(answer, str) else answer


@dataclass
class Pursuit:
    """The run of a goal, the person who answered, and the requests to the model."""

    run: PlanRun
    person: Person
    requests: list[Request]

    @property
    def decisions(self) -> list[Request]:
        """Return the requests for a decision."""
        return [request for request in self.requests if request["response_format"]["json_schema"]["name"] == "goal_decision"]


async def pursue(
    player: Player | Callable[[Request], Reply],
    store: PlanStore,
    configured: Callable[[ScriptedServer], ScriptedServer],
    *,
    plan: str | ExecutionPlan = PLACE,
    person: Person | None = None,
    verifier: Verifier | None = None,
    tools: ToolRegistry = week.TOOLS,
    script: Callable[[Request], Reply] | None = None,
    inputs: Mapping[str, object] | None = None,
) -> Pursuit:
    """Run `plan` with `player` as the model of its goals. `script` replaces both `player` and `verifier`."""
    person, document = person or Person(), load_plan(plan) if isinstance(plan, str) else plan
    with scripted(script or playing(player, verifier=verifier)) as server:
        configured(server)
        run = await arun_plan(document, tools=tools, approver=CallbackApprover(person, by="ana"), inputs=inputs, store=store, offline=True)
    return Pursuit(run, person, server.requests)


def places_a_task(name: str = "高数作业", day: int = DAY) -> Player:
    """Return a model that finds the task and a free slot on the day, places the task, and ends with the receipt as evidence."""

    def answer(seen: Seen) -> Answer:
        if proof := seen.proof("place"):
            return seen.end(f"{proof}: {name}已安排")
        pending, free = seen.result("list_tasks"), seen.result("find_free")
        if pending is None:
            return reads("list_tasks", status="pending")
        if free is None:
            return reads("find_free", day=day)
        task = next(pending_task["state_id"] for pending_task in pending if pending_task["name"] == name)
        return writes("place", task=task, **free[len(seen.refusals) % len(free)])

    return answer


def placed() -> dict[str, tuple[int, int]]:
    """Return the day and slot of every task that is placed."""
    return {row["name"]: (row["day"], row["slot"]) for row in week.list_tasks("placed")}
