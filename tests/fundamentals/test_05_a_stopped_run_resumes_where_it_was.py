"""Resuming carries what has a succeeded receipt; only the rest is run."""

import pytest

from plan_adapter import ExecutionPlan, PlanStore, RunConflictError, ToolError, ToolRegistry, approve, resume_run, run_plan, tool

called: list[str] = []
broken = True


@tool(effect="read")
def build(part: str) -> str:
    """Build a part."""
    called.append(part)
    if part == "backend" and broken:
        raise ToolError("the disk is full")
    return f"{part}.tar"


def test_what_is_done_is_not_done_again() -> None:
    global broken
    broken = True
    called.clear()
    plan = ExecutionPlan(description="Build two parts, then ship them")
    plan.add_step("build", "Build the front end", {"part": "frontend"}, id="frontend")
    plan.add_step("build", "Build the back end", {"part": "backend"}, id="backend")
    plan.add_step("build", "Ship", {"part": "${{ steps.frontend.result + steps.backend.result }}"}, id="ship")
    tools = ToolRegistry([build])

    stopped = run_plan(plan, tools=tools, approval=approve(plan, tools=tools, by="ana"), offline=True)
    assert (stopped.status, called) == ("partial", ["frontend", "backend"])

    broken = False
    run = resume_run(stopped.id, tools=tools, offline=True)
    assert run.id == stopped.id
    assert (run.status, called) == ("completed", ["frontend", "backend", "backend", "frontend.tarbackend.tar"])
    assert [step.carried for step in run.steps] == [True, False, False]

    with pytest.raises(RunConflictError, match="has completed"):
        resume_run(run.id, tools=tools, offline=True)


async def test_the_store_keeps_every_attempt() -> None:
    async with PlanStore() as store:
        assert await store.runs() == []
