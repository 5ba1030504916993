"""`for_each` calls a tool once for each item of a list. Each item has its own label, result and attempts."""

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, tool
from plan_adapter.errors import ToolError
from plan_adapter.plans import Input
from plan_adapter.runs import aresume_run, arun_plan


async def test_a_resumed_run_does_not_call_completed_items_again() -> None:
    called: list[str] = []
    broken = {"web-2"}

    @tool(effect="read")
    def check(node: str) -> str:
        """Check one node."""
        called.append(node)
        if node in broken:
            raise ToolError(f"{node} does not answer")
        return f"{node} is up"

    plan = ExecutionPlan(description="Check every node")
    plan.options.require_approval = False
    plan.inputs["nodes"] = Input(type="array")
    plan.add_step("check", "Check a node", {"node": "${{ item }}"}, id="check", for_each="${{ inputs.nodes }}")
    tools = ToolRegistry([check])

    run = await arun_plan(plan, tools=tools, inputs={"nodes": ["web-1", "web-2", "web-3"]}, offline=True)
    assert (run.status, run.step("check").error) == ("failed", "item web-2: web-2 does not answer; 1 of 3 items was not started")

    called.clear()
    broken.clear()
    run = await aresume_run(run.id, tools=tools, offline=True)
    assert run.step("check").result == ["web-1 is up", "web-2 is up", "web-3 is up"]
    assert called == ["web-2", "web-3"]
    async with PlanStore() as store:
        assert [(row.label, row.number) for row in await store.attempts(run.id) if row.item == 1] == [("web-2", 1), ("web-2", 2)]
