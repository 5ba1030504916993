"""A step can declare how it is rolled back. When a run fails, its completed steps are rolled back, the last one first."""

from plan_adapter import ExecutionPlan, ToolRegistry, run_plan, tool
from plan_adapter.errors import ToolError
from plan_adapter.model.plan import Rollback


def test_completed_steps_are_rolled_back_in_reverse_order() -> None:
    drained: list[str] = []
    rolled_back: list[str] = []

    @tool(effect="write")
    def drain(node: str) -> str:
        """Take a node out of the load balancer."""
        drained.append(node)
        return node

    @tool(effect="write")
    def undrain(node: str) -> str:
        """Put a node back."""
        drained.remove(node)
        rolled_back.append(node)
        return node

    @tool(effect="write")
    def restart() -> None:
        """Fail to restart the service."""
        raise ToolError("the unit file is broken")

    plan = ExecutionPlan(description="Restart behind the load balancer")
    plan.options.require_approval = False
    undo = Rollback(tool_name="undrain", parameters={"node": "${{ result }}"})
    plan.add_step("drain", "Drain web-1", {"node": "web-1"}, id="first", rollback=undo)
    plan.add_step("drain", "Drain web-2", {"node": "web-2"}, id="second", depends_on=["first"], rollback=undo)
    plan.add_step("restart", "Restart", id="restart", depends_on=["second"])

    run = run_plan(plan, tools=ToolRegistry([drain, undrain, restart]), offline=True)
    assert (run.status, run.reason) == ("partial", "step_failed")
    assert (drained, rolled_back) == ([], ["web-2", "web-1"])
    assert run.message == "`restart` failed: the unit file is broken; rolled back: second, first"
