"""A plan refers to secrets by name. Their values are read when a step is called, and are never recorded."""

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.errors import InvalidPlanError
from plan_adapter.runs import arun_plan


def plan_with_a_secret() -> ExecutionPlan:
    plan = ExecutionPlan(description="Log in")
    plan.options.require_approval = False
    plan.add_step("login", "Log in", {"header": "Bearer ${{ secrets.token }}"}, id="login")
    return plan


async def test_the_tool_gets_the_value_and_the_record_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    @tool(effect="read")
    def login(header: str) -> str:
        """Log in, and repeat the header carelessly."""
        given.append(header)
        return f"sent {header}"

    monkeypatch.setenv("PLAN_ADAPTER_SECRET_TOKEN", "hunter2-hunter2")
    run = await arun_plan(plan_with_a_secret(), tools=ToolRegistry([login]), offline=True)
    assert given == ["Bearer hunter2-hunter2"]
    assert run.step("login").result == "sent Bearer ***"
    async with PlanStore() as store:
        assert "hunter2" not in str(await store.attempts(run.id)) + str(await store.receipts(run.id))


async def test_a_run_with_a_missing_secret_is_refused_before_any_tool_is_called() -> None:
    @tool(effect="read")
    def login(header: str) -> str:
        """Log in."""
        raise AssertionError(header)

    with pytest.raises(InvalidPlanError, match="token"):
        await arun_plan(plan_with_a_secret(), tools=ToolRegistry([login]), offline=True)
