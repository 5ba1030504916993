"""Tests of cancelling a run in Prefect while no process executes it: the run ends as cancelled, with the reason."""

import asyncio
from uuid import UUID

import pytest
from prefect import Flow, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Cancelled, Cancelling, Pending, Running

from plan_adapter import ExecutionPlan, PlanRun, PlanStore, ToolRegistry, tool
from plan_adapter.cli.app import main
from plan_adapter.model.status import Outcome, RunReason, StepStatus
from plan_adapter.runner import acancel_run
from plan_adapter.runs import aresume_run, arevise_run
from plan_adapter.runs.reconcile import find_interrupted, reconcile
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from plan_adapter.store.database import tables
from plan_adapter.validation import bind_inputs, validate
from tests.runs.left_behind import let_executor_die
from tests.sql import Sql

pytestmark = pytest.mark.usefixtures("prefect_server")

REASON = "取消 aus der UI"
WORKER_MESSAGE = "Flow run was cancelled successfully."


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


TOOLS = ToolRegistry([look])


def a_plan(*, asks: bool) -> ExecutionPlan:
    plan = ExecutionPlan(name="夜间检查", description="Look")
    plan.options.require_approval = False
    plan.add_step("look", "Look", id="look")
    plan.add_step("look", "Look again", id="again", depends_on=["look"], requires_approval=asks)
    return plan


async def waiting(store: PlanStore) -> PlanRun:
    """Return a run that waits at a step gate without a process."""
    run = await started(a_plan(asks=True), store)
    assert (run.status, (await state_of(run)).name) == (PlanStatus.PENDING_APPROVAL, "Waiting")
    return run


async def started(plan: ExecutionPlan, store: PlanStore) -> PlanRun:
    return await execute_plan(bind_inputs(validate(plan, TOOLS)), run_request=RunRequest(waits=False), store=store, record_pending=True)


async def interrupted(store: PlanStore, sql: Sql) -> PlanRun:
    """Return a run whose process died while it executed it."""
    run = await started(a_plan(asks=False), store)
    await let_executor_die(run, sql)
    await show(run, Running())
    return await store.run(run.id)


async def state_of(run: PlanRun) -> State:
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(run.flow_run_id or ""))).state
    assert state is not None
    return state


async def show(run: PlanRun, *states: State) -> None:
    async with get_client() as client:
        for state in states:
            await client.set_flow_run_state(UUID(run.flow_run_id or ""), state, force=True)


async def test_a_waiting_run_without_a_process_ends_with_the_reason(store: PlanStore) -> None:
    run = await waiting(store)
    await show(run, Cancelling(message=REASON))
    assert await reconcile(store, with_prefect=False) == []
    [finding] = await reconcile(store, with_prefect=True)
    assert (finding.kind, finding.run_id, finding.is_corrected) == ("cancelled", run.id, True)
    assert REASON in finding.message
    now = await store.run(run.id)
    assert (now.status, now.reason, now.message) == (PlanStatus.CANCELLED, RunReason.CANCELLED, REASON)
    assert [(step.status, step.reason) for step in now.steps] == [(StepStatus.COMPLETED, None), (StepStatus.SKIPPED, REASON)]
    assert await store.gates.find(run_id=run.id) == []
    shown = await state_of(run)
    assert (shown.name, shown.message) == ("Cancelled", f"1 of 2 steps done, 1 skipped: {REASON}")
    assert await reconcile(store, with_prefect=True) == []
    assert (await store.verify(run.id)).ok


async def test_a_cancellation_that_killed_the_process_is_not_shown_as_interrupted(store: PlanStore, sql: Sql) -> None:
    run = await interrupted(store, sql)
    await show(run, Cancelling(message=REASON), Cancelled(message=WORKER_MESSAGE))
    [finding] = await find_interrupted(store, with_prefect=True)
    assert (finding.kind, finding.is_corrected) == ("cancelled", True)
    now = await store.run(run.id)
    assert (now.status, now.message) == (PlanStatus.CANCELLED, REASON)
    shown = await state_of(run)
    assert (shown.name, REASON in (shown.message or "")) == ("Cancelled", True)


@pytest.mark.thorough
async def test_open_task_runs_and_gates_of_a_killed_process_end_with_its_run(store: PlanStore, sql: Sql) -> None:
    run = await interrupted(store, sql)
    cut_off = [
        tables.receipts.delete().where(tables.receipts.c.run_id == run.id, tables.receipts.c.step_id == "again"),
        tables.step_runs.delete().where(tables.step_runs.c.run_id == run.id, tables.step_runs.c.step_id == "again"),
        tables.attempts.update().where(tables.attempts.c.step_id == "again").values(effect="write"),
    ]
    await sql.change(*cut_off)
    of_run = FlowRunFilter.model_validate({"id": {"any_": [run.flow_run_id]}})
    async with get_client() as client:
        task_runs: dict[str, TaskRun] = {}
        while "again" not in task_runs or task_runs["again"].state_name != "Completed":  # the server learns of it by events
            task_runs = {task_run.name: task_run for task_run in await client.read_task_runs(flow_run_filter=of_run)}
        task_run = task_runs["again"]
        await client.set_task_run_state(task_run.id, Running(), force=True)
        gate = await client.create_flow_run(Flow(lambda: None, name="approve"), parent_task_run_id=task_runs["look"].id, state=Pending())
        await show(run, Cancelling(message=REASON))
        await reconcile(store, with_prefect=True)
        ends = [(await client.read_task_run(task_run.id)).state, (await client.read_flow_run(gate.id)).state]
    assert [(state.name, state.message) for state in ends if state is not None] == [
        ("UnknownOutcome", REASON),
        ("Cancelled", "the run has ended"),
    ]
    step = (await store.run(run.id)).step("again")
    assert (step.status, step.outcome, step.error) == (StepStatus.FAILED, Outcome.UNKNOWN, REASON)


async def test_a_workers_message_does_not_replace_the_reason(store: PlanStore) -> None:
    run = await waiting(store)
    await acancel_run(run.id, reason=REASON, store=store)
    await show(run, Cancelled(message=WORKER_MESSAGE))
    [finding] = await reconcile(store, with_prefect=True)
    assert (finding.kind, finding.is_corrected) == ("shown", True)
    assert REASON in ((await state_of(run)).message or "")
    assert await reconcile(store, with_prefect=True) == []


@pytest.mark.thorough
async def test_a_handled_cancellation_does_not_end_a_later_version(store: PlanStore) -> None:
    run = await waiting(store)
    await show(run, Cancelled(message=REASON))
    await reconcile(store, with_prefect=True)
    revised = a_plan(asks=True)
    revised.steps[1].description = "Look once more"
    await arevise_run(run.id, revised, tools=TOOLS, by="安娜", store=store)
    assert [finding.kind for finding in await reconcile(store, with_prefect=True)] == []
    assert (await store.run(run.id)).status is PlanStatus.PENDING_APPROVAL


@pytest.mark.thorough
async def test_resuming_a_cancelled_run_ends_it_and_a_second_resume_runs_it(store: PlanStore, sql: Sql) -> None:
    run = await interrupted(store, sql)
    await show(run, Cancelled(message=REASON))
    ended = await aresume_run(run.id, tools=TOOLS, store=store)
    assert (ended.status, ended.message, (await state_of(run)).is_cancelled()) == (PlanStatus.CANCELLED, REASON, True)
    again = await aresume_run(run.id, tools=TOOLS, store=store)
    assert (again.status, (await state_of(run)).is_completed()) == (PlanStatus.COMPLETED, True)


async def test_approving_a_run_cancelled_in_prefect_is_too_late(store: PlanStore, capsys: pytest.CaptureFixture[str]) -> None:
    run = await waiting(store)
    await show(run, Cancelling(message=REASON))
    assert await asyncio.to_thread(main, ["approve", run.id, "--step", "again"]) == 2
    assert f"too late to approve: run {run.id} was cancelled in Prefect: {REASON}" in capsys.readouterr().err
    given = [row for row in await store.approvals(run.id) if row.step_id is not None]
    assert ((await store.run(run.id)).status, given) == (PlanStatus.CANCELLED, [])


def test_plan_resume_exits_with_4_for_a_cancelled_run(capsys: pytest.CaptureFixture[str]) -> None:
    async def cancelled() -> PlanRun:
        async with PlanStore() as store:
            run = await waiting(store)
            await show(run, Cancelled(message=REASON))
            return run

    run = asyncio.run(cancelled())
    assert main(["resume", run.id, "--detach", "--tools", f"{__name__}:TOOLS"]) == 4
    assert REASON in capsys.readouterr().out
