"""Plans whose tools are Prefect tasks."""

from uuid import UUID

from prefect.client.schemas.objects import TaskRun

from plan_adapter import ExecutionPlan, PlanRun
from tests.engine.calls import task_runs


def a_plan(**options: object) -> ExecutionPlan:
    plan = ExecutionPlan(name="tasks", description="Call Prefect tasks")
    plan.options.require_approval = False
    for name, value in options.items():
        setattr(plan.options, name, value)
    return plan


async def shown(run: PlanRun, *names: str) -> dict[str, TaskRun]:
    return await task_runs(UUID(run.flow_run_id or ""), names)
