"""Resume a run. Completed steps are kept; the rest run now."""

import pytest

from plan_adapter import ExecutionPlan, PlanStore, ToolRegistry, resume_run, run_plan, tool
from plan_adapter.errors import RunConflictError, ToolError


class Workshop:
    """Provides a tool that fails while the disk is full, and records its calls."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.disk_is_full = True

        @tool(effect="read")
        def build(part: str) -> str:
            """Build a part."""
            self.called.append(part)
            if part == "backend" and self.disk_is_full:
                raise ToolError("the disk is full")
            return f"{part}.tar"

        self.tools = ToolRegistry([build])


def plan_of_three_steps() -> ExecutionPlan:
    plan = ExecutionPlan(description="Build two parts, then ship them")
    plan.options.require_approval = False
    plan.add_step("build", "Build the front end", {"part": "frontend"}, id="frontend")
    plan.add_step("build", "Build the back end", {"part": "backend"}, id="backend")
    plan.add_step("build", "Ship", {"part": "${{ steps.frontend.result + steps.backend.result }}"}, id="ship")
    return plan


def test_completed_steps_are_not_run_again() -> None:
    workshop = Workshop()
    stopped = run_plan(plan_of_three_steps(), tools=workshop.tools, offline=True)
    assert (stopped.status, workshop.called) == ("partial", ["frontend", "backend"])

    workshop.disk_is_full = False
    run = resume_run(stopped.id, tools=workshop.tools, offline=True)
    assert run.id == stopped.id
    assert (run.status, workshop.called) == ("completed", ["frontend", "backend", "backend", "frontend.tarbackend.tar"])
    assert [step.carried for step in run.steps] == [True, False, False]

    with pytest.raises(RunConflictError, match="has completed"):
        resume_run(run.id, tools=workshop.tools, offline=True)


async def test_the_store_keeps_every_attempt() -> None:
    from plan_adapter.runs import aresume_run, arun_plan

    workshop = Workshop()
    stopped = await arun_plan(plan_of_three_steps(), tools=workshop.tools, offline=True)
    workshop.disk_is_full = False
    await aresume_run(stopped.id, tools=workshop.tools, offline=True)
    async with PlanStore() as store:
        assert [run.id for run in await store.runs()] == [stopped.id]
        attempts = [(attempt.step_id, attempt.number) for attempt in await store.attempts(stopped.id)]
    assert attempts == [("frontend", 1), ("backend", 1), ("backend", 2), ("ship", 1)]
