"""What ended processes leave behind is found, mended where nobody needs to be asked, and told where somebody does."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Running

from plan_adapter import ExecutionPlan, PlanRun, PlanStatus, PlanStore, ToolRegistry, arun_plan, tool
from plan_adapter.cli.app import main
from plan_adapter.engine.connection import Server
from plan_adapter.plan import new_id
from plan_adapter.record import Attempt
from plan_adapter.runs.reconciling import reconcile
from plan_adapter.store import tables
from plan_adapter.store.holder import Holder

LeaveBehind = Callable[..., Awaitable[PlanRun]]


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


def a_plan() -> ExecutionPlan:
    plan = ExecutionPlan(name="夜间检查", description="Look once")
    plan.options.require_approval = False
    plan.add_step("look", "Look", id="look")
    return plan


@pytest.fixture
def leave_behind(store: PlanStore) -> LeaveBehind:
    """Makes a run whose process ended while it executed it, in the middle of a write if that is wanted."""

    async def leave(*, offline: bool = True, in_write: bool = False) -> PlanRun:
        run = await arun_plan(a_plan(), tools=ToolRegistry([look]), store=store, offline=offline)
        executing = tables.runs.update().where(tables.runs.c.id == run.id).values(status=PlanStatus.EXECUTING.value, completed_at=None)
        dead = str(replace(Holder.this(), pid=2**22 + 1))
        held = tables.leases.update().where(tables.leases.c.run_id == run.id).values(holder=dead)
        await store._database.write(lambda connection: [connection.execute(statement) for statement in (executing, held)] and None)  # pyright: ignore[reportPrivateUsage]
        if in_write:
            recorder = await store.recorder(run)
            await recorder.intent(
                Attempt(new_id(), run.id, "restart", None, 1, "bash", "write", {}, "k" * 64, recorder.now()),
            )
        return await store.run(run.id)

    return leave


async def test_a_run_whose_process_is_gone_is_named_with_what_goes_on_with_it(store: PlanStore, leave_behind: LeaveBehind) -> None:
    run = await leave_behind()
    [finding] = await reconcile(store, with_prefect=False)
    assert (finding.kind, finding.run_id, finding.name, finding.is_mended) == ("interrupted", run.id, "夜间检查", False)
    assert finding.command == f"plan resume {run.id}"


async def test_a_write_that_was_cut_short_is_named(store: PlanStore, leave_behind: LeaveBehind) -> None:
    run = await leave_behind(in_write=True)
    [finding] = await reconcile(store, with_prefect=False)
    assert "whether `restart` was done is unknown" in finding.message
    assert finding.command == f"plan resolve {run.id} restart done|again|abort"


async def test_nothing_is_found_where_nothing_was_left_behind(store: PlanStore) -> None:
    await arun_plan(a_plan(), tools=ToolRegistry([look]), store=store, offline=True)
    assert await reconcile(store, with_prefect=False) == []


async def test_the_command_prints_each_finding(store: PlanStore, leave_behind: LeaveBehind, capsys: pytest.CaptureFixture[str]) -> None:
    import asyncio

    run = await leave_behind()
    assert await asyncio.to_thread(main, ["reconcile", "--offline", "--json"]) == 0
    [finding] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (finding["run_id"], finding["kind"]) == (run.id, "interrupted")


async def state_of(run: PlanRun) -> State:
    async with get_client() as client:
        state = (await client.read_flow_run(UUID(run.flow_run_id or ""))).state
    assert state is not None
    return state


async def show(run: PlanRun, state: State) -> None:
    async with get_client() as client:
        await client.set_flow_run_state(UUID(run.flow_run_id or ""), state, force=True)


async def test_prefect_is_told_how_runs_really_stand(prefect_server: Server, store: PlanStore, leave_behind: LeaveBehind) -> None:
    ended = await arun_plan(a_plan(), tools=ToolRegistry([look]), store=store)
    await show(ended, Cancelled(message="somebody set it"))
    interrupted = await leave_behind(offline=False)
    await show(interrupted, Running())

    found = await reconcile(store, with_prefect=True)

    assert [(finding.kind, finding.run_id, finding.is_mended) for finding in found] == [
        ("interrupted", interrupted.id, False),
        ("shown", interrupted.id, True),
        ("shown", ended.id, True),
    ]
    assert (await state_of(ended)).is_completed()
    shown = await state_of(interrupted)
    assert (shown.is_crashed(), shown.name) == (True, "Interrupted")
    assert f"plan resume {interrupted.id}" in (shown.message or "")
    assert [finding.kind for finding in await reconcile(store, with_prefect=True)] == ["interrupted"]
