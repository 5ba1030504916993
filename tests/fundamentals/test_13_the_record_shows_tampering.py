"""Every change is an entry in an audit log. Each entry contains the digest of the one before, so tampering is detected."""

from pathlib import Path

from sqlalchemy import create_engine, text

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.runs import arun_plan


async def test_an_altered_result_is_detected(home: Path) -> None:
    @tool(effect="read")
    def count() -> int:
        """Count the rows."""
        return 3

    plan = ExecutionPlan(description="Count the rows")
    plan.options.require_approval = False
    plan.add_step("count", "Count", id="count")
    run = await arun_plan(plan, tools=ToolRegistry([count]), offline=True)
    async with PlanStore() as store:
        assert (await store.verify(run.id)).ok
        assert (await store.audit(run.id))[0].kind == "run_created"

    database = create_engine(f"sqlite:///{home / 'plans.db'}")
    with database.begin() as connection:
        connection.execute(text("UPDATE receipts SET result = '4'"))
    database.dispose()
    async with PlanStore() as store:
        found = await store.verify(run.id)
    assert not found.ok
    assert "receipts" in str(found.problem)
