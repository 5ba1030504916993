"""Tests of the permissions of a draft: a person can give them, a model cannot."""

from plan_adapter import ToolRegistry, tool
from plan_adapter.agent.openai_model import OpenAIModel
from plan_adapter.agent.planner import Planner
from plan_adapter.model.drafts import Draft, PlanRequest
from tests.agent.server import ScriptedServer, says, scripted
from tests.agent.test_planner import done, look, step


@tool(effect="write", permissions=["allow_reorder"])
def reorder(subject: str) -> str:
    """Reorder the tasks of a subject."""
    return subject


REORDER = done(step("reorder", {"subject": "数学"}))


async def reordered(server: ScriptedServer, *permissions: str) -> Draft:
    request = PlanRequest("Reorder the tasks", permissions=permissions)
    return await Planner(OpenAIModel("m", base_url=server.url), ToolRegistry([look, reorder])).drafted(request)


async def test_only_a_person_can_give_permissions_to_a_draft() -> None:
    with scripted(says({**REORDER, "permissions": ["allow_reorder", "more"]})) as server:
        draft = await reordered(server, "allow_reorder")
        assert 'permissions (JSON):\n["allow_reorder"]' in server.requests[0]["messages"][1]["content"]
    assert draft.plan is not None
    assert draft.plan.permissions == ["allow_reorder"]
    assert draft.notes == ["ignored in the answer, because a model may not decide it: `permissions`"]


async def test_a_model_must_use_another_tool_if_the_permission_is_missing() -> None:
    with scripted(says({**REORDER, "permissions": ["allow_reorder"]}), says(done(step("look", {"url": "http://week"})))) as server:
        draft = await reordered(server)
        correction = server.requests[1]["messages"][-1]["content"]
    assert "`reorder` needs the permission `allow_reorder`, which the plan does not give" in correction
    assert "let the step call another tool" in correction
    assert draft.plan is not None
    assert ([step.tool_name for step in draft.plan.steps], draft.plan.permissions) == (["look"], [])


async def test_an_empty_permission_is_refused_before_a_model_is_asked() -> None:
    with scripted() as server:
        draft = await reordered(server, " ")
        assert server.requests == []
    assert draft.failure == "a permission is empty: write its name as the tool declares it"
