"""A plan names its secrets. Their values are read when a step is called, and appear nowhere in the record."""

import pytest

from plan_adapter import ExecutionPlan, InvalidPlanError, PlanStore, ToolRegistry, arun_plan, tool


def plan_with_a_secret() -> ExecutionPlan:
    plan = ExecutionPlan(description="Log in")
    plan.options.require_approval = False
    plan.add_step("login", "Log in", {"header": "Bearer ${{ secrets.token }}"}, id="login")
    return plan


async def test_the_tool_gets_the_value_and_the_record_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_missing_secret_refuses_the_run_before_anything_is_called() -> None:
    @tool(effect="read")
    def login(header: str) -> str:
        """Log in."""
        raise AssertionError(header)

    with pytest.raises(InvalidPlanError, match="token"):
        await arun_plan(plan_with_a_secret(), tools=ToolRegistry([login]), offline=True)
