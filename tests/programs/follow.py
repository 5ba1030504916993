"""Follow a run with hooks, sync and async."""

from plan_adapter import ExecutionPlan, PlanRun, run_plan, tool
from plan_adapter.errors import ToolError
from plan_adapter.plans import ExecutionOptions
from plan_adapter.runs import Hooks
from plan_adapter.store import StepRun


@tool(effect="read")
def measure(sensor: str) -> float:
    """Read a sensor."""
    if sensor == "broken":
        raise ToolError("no signal")
    return 21.5


def started(run: PlanRun, step: StepRun) -> None:
    print("start", step.id)


async def failed(run: PlanRun, step: StepRun, error: str) -> None:
    print("failed", step.id, error)


def ended(run: PlanRun) -> None:
    print("end", run.outcome)


plan = ExecutionPlan(description="Measure", options=ExecutionOptions(require_approval=False, stop_on_error=False))
plan.add_step(measure, id="hall", sensor="hall")
plan.add_step(measure, id="roof", sensor="broken", depends_on=["hall"])

run = run_plan(plan, tools=[measure], hooks=Hooks(on_step_start=started, on_step_failed=failed, on_plan_complete=ended), offline=True)
print(run.step("hall").result, run.has_ended, run.succeeded, run.is_completed)
