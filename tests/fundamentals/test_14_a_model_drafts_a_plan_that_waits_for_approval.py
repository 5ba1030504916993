"""A planner asks a model for a plan. The answer is checked like any plan, repaired if it is wrong, and never runs unapproved."""

import pytest

from plan_adapter import ToolRegistry, run_plan, tool
from plan_adapter.agent import OpenAIModel, Planner, PlanRequest
from plan_adapter.errors import NotApprovedError
from tests.agent.server import says, scripted


def test_a_wrong_answer_is_repaired_and_the_draft_needs_an_approval() -> None:
    @tool(effect="write")
    def deploy(version: str) -> str:
        """Deploy a version."""
        return version

    tools = ToolRegistry([deploy])

    def answer(tool_name: str) -> dict[str, object]:
        step = {"tool_name": tool_name, "description": "Deploy it", "parameters": {"version": "2.1"}, "id": "deploy"}
        return {"action": "plan_done", "speak": "Deploys 2.1.", "reason": "clear", "description": "Deploy 2.1", "steps": [step]}

    with scripted(says(answer("deploi")), says(answer("deploy"))) as server:
        planner = Planner(OpenAIModel("any-model", base_url=server.url), tools)
        plan = planner.draft(PlanRequest("Deploy 2.1 to production"))
        assert len(server.requests) == 2

    assert [step.tool_name for step in plan.steps] == ["deploy"]
    assert plan.options.require_approval
    with pytest.raises(NotApprovedError):
        run_plan(plan, tools=tools, offline=True)
