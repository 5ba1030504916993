"""A release that fails, and the answers of a model that replans it."""

import json
from typing import Any

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.errors import UnknownOutcomeError
from plan_adapter.gates import CallbackApprover
from plan_adapter.model.plan import Rollback
from plan_adapter.runs import arun_plan
from plan_adapter.store import load_plan
from tests.agent.server import Reply, Request, says

ANA = CallbackApprover(lambda _: True, by="ana")


class World:
    """The tools of a release, which record their calls."""

    def __init__(self) -> None:
        self.did: list[str] = []

        @tool(effect="read")
        def look(host: str) -> dict[str, str]:
            """Look at a host."""
            self.did.append(f"look {host}")
            return {"host": host, "版本": "1.9", "note": "x" * 10_000}

        @tool(effect="write")
        def deploy(version: str) -> str:
            """Deploy a version."""
            self.did.append(f"deploy {version}")
            if version.startswith("bad"):
                raise ValueError(f"没有 {version} 这个版本")
            if version == "lost":
                raise UnknownOutcomeError("nobody knows")
            return version

        @tool(effect="write")
        def undo(version: str) -> str:
            """Take a version back."""
            self.did.append(f"undo {version}")
            return version

        self.tools = ToolRegistry([look, deploy, undo])


PLAN = """
name: release
description: 发布新版本
inputs: {host: {type: string}}
options: {require_approval: false, allow_parallel: true}
steps:
  - {id: check, tool_name: look, description: Look, parameters: {host: "${{ inputs.host }}"}}
  - {id: first, tool_name: deploy, description: First, parameters: {version: "1"}, depends_on: [check]}
  - {id: second, tool_name: deploy, description: Second, parameters: {version: bad-2}, depends_on: [first]}
  - {id: third, tool_name: look, description: Third, parameters: {host: three}, depends_on: [second], requires_approval: true}
outputs: {版本: "${{ steps.first.result }}"}
metadata: {owner: 平台}
"""


UNDO = Rollback(tool_name="undo", parameters={"version": "${{ result }}"})


def a_plan(**fields: Any) -> ExecutionPlan:
    plan = load_plan(PLAN)
    for name, value in fields.items():
        setattr(plan, name, value)
    return plan


def undoable(**fields: Any) -> ExecutionPlan:
    plan = a_plan(**fields)
    plan.step("first").rollback = UNDO
    return plan


def step(tool_name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"tool_name": tool_name, "description": "", "parameters": parameters, **fields}


def remaining(*steps: dict[str, Any], **fields: Any) -> Reply:
    return says({"action": "plan_done", "speak": "好的", "reason": "", "description": "另一个", "steps": [*steps], **fields})


REDEPLOY = step("deploy", {"version": "2 on ${{ steps.check.result.host }}"}, id="redeploy", depends_on=["first"])
GOOD = remaining(REDEPLOY, step("look", {"host": "three"}, id="third", depends_on=[0]))


async def failed(world: World, store: PlanStore, plan: ExecutionPlan | None = None, **inputs: str) -> PlanRun:
    given = inputs or {"host": "web-1"}
    return await arun_plan(plan or a_plan(), tools=world.tools, inputs=given, store=store, offline=True)


def user_message(request: Request) -> str:
    return str(request["messages"][1]["content"])


def context_of(request: Request) -> dict[str, Any]:
    return json.loads(user_message(request).split("context (JSON):\n")[1].split("\n\n")[0])
