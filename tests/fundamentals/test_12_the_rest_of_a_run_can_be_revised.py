"""A stopped run can take a new version of its plan. Completed steps keep their results; the new version needs its own approval."""

from plan_adapter import ExecutionPlan, ToolRegistry, approve, tool
from plan_adapter.errors import ToolError
from plan_adapter.runs import aresume_run, arevise_run, arun_plan


async def test_a_failed_step_is_replaced_and_completed_steps_are_kept() -> None:
    called: list[str] = []

    @tool(effect="read")
    def fetch(url: str) -> str:
        """Fetch a page."""
        called.append(url)
        if "old" in url:
            raise ToolError("gone")
        return url

    tools = ToolRegistry([fetch])

    def version(second: str) -> ExecutionPlan:
        plan = ExecutionPlan(description="Fetch two pages", id="fetch-two")
        plan.add_step("fetch", "The first", {"url": "http://example/first"}, id="first")
        plan.add_step("fetch", "The second", {"url": second}, id="second", depends_on=["first"])
        return plan

    before, after = version("http://example/old"), version("http://example/new")
    run = await arun_plan(before, tools=tools, approval=approve(before, tools=tools, by="ana"), offline=True)
    assert run.status == "partial"

    run = await arevise_run(run.id, after, tools=tools, by="ana", note="the page has moved")
    assert run.status == "pending_approval"

    run = await aresume_run(run.id, tools=tools, approval=approve(after, tools=tools, by="ana"), offline=True)
    assert (run.status, [step.carried for step in run.steps]) == ("completed", [True, False])
    assert called == ["http://example/first", "http://example/old", "http://example/new"]
