"""Checked by basedpyright in test_public_api.py: users' type checkers see the public names, and the signatures of sync twins."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=error, reportDeprecated=none

from pathlib import Path
from typing import assert_type

from plan_adapter import ExecutionPlan, PlanRun, Step, ToolRegistry, approve, compile_plan, resume_run, run_plan
from plan_adapter.agent import PlanSession
from plan_adapter.errors import InvalidPlanError
from plan_adapter.errors import InvalidPlanError as MovedInvalidPlanError
from plan_adapter.gates import Approval, CallbackApprover
from plan_adapter.plans import ValidatedPlan, validate
from plan_adapter.runs import acancel_run, arevise_run, arun_plan, cancel_run, resolve_step, revise_run
from plan_adapter.store import PlanStatus, aload_plan, load_plan
from plan_adapter.store import load_plan as former_load_plan
from plan_adapter.tools import Done


def use(plan: ExecutionPlan, tools: ToolRegistry) -> None:
    assert_type(plan.add_step("a", "b"), Step)
    assert_type(approve(plan, tools=tools), Approval)
    run = run_plan(plan, tools=tools, inputs={"n": 1}, approver=CallbackApprover(lambda _: True, by="ana"), offline=True)
    assert_type(run, PlanRun)
    assert_type(run.status, PlanStatus)
    assert_type(resume_run("r", tools=tools, here=True), PlanRun)
    assert_type(cancel_run("r", reason="late"), PlanRun)
    assert_type(resolve_step("r", "s", "done", result={"a": 1}), PlanRun)
    assert_type(revise_run("r", plan, tools=tools), PlanRun)
    assert_type(load_plan(Path("plan.yaml")), ExecutionPlan)
    assert_type(former_load_plan("plan.yaml"), ExecutionPlan)
    assert_type(validate(plan, tools), ValidatedPlan)
    compile_plan(validate(plan, tools))
    assert_type(InvalidPlanError([]), MovedInvalidPlanError)
    Done(1)


async def use_in_an_event_loop(plan: ExecutionPlan, tools: ToolRegistry, session: PlanSession) -> None:
    assert_type(await arun_plan(plan, tools=tools), PlanRun)
    assert_type(await acancel_run("r"), PlanRun)
    assert_type(await arevise_run("r", plan, tools=tools), PlanRun)
    assert_type(await aload_plan("plan.yaml"), ExecutionPlan)
    assert_type(await session.execute(), PlanRun)


async def misuse(plan: ExecutionPlan, tools: ToolRegistry) -> None:
    run_plan(plan)  # pyright: ignore[reportCallIssue]
    run_plan(plan, tools=tools, offline="yes")  # pyright: ignore[reportArgumentType]
    run_plan(plan, tools=tools, wait=True)  # pyright: ignore[reportCallIssue]
    resolve_step("r", "s", "perhaps")  # pyright: ignore[reportArgumentType]
    await cancel_run("r")  # pyright: ignore[reportGeneralTypeIssues]
