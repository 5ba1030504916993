"""Tests of cancelling with a rollback, and of cancelling a rollback in progress."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from prefect import get_client
from prefect.states import Cancelling

from plan_adapter import ExecutionPlan, PlanStore
from plan_adapter.engine.connection import Server
from plan_adapter.execution.rollback import Rollback as Undo
from plan_adapter.model.plan import Rollback
from plan_adapter.model.status import RunReason
from plan_adapter.runs import acancel_run, arun_plan, stages
from plan_adapter.store import PlanStatus
from tests.runs.drained import World, pool, undone


@pytest.mark.parametrize("rollback", [False, True])
async def test_a_cancelled_run_is_rolled_back_if_requested(rollback: bool, store: PlanStore, world: World) -> None:
    running = asyncio.create_task(arun_plan(pool("wait"), tools=world.tools, store=store, offline=True))
    await world.waiting.wait()
    held = (await store.runs())[0]
    asked = await acancel_run(held.id, reason="enough (by ana)", rollback=rollback, tools=world.tools, store=store)
    assert asked.status is PlanStatus.EXECUTING  # the process that executes the run rolls it back
    run = await running
    assert (run.status, run.reason) == (PlanStatus.CANCELLED, RunReason.CANCELLED)
    assert run.message == "enough (by ana)" + ("; rolled back: two, one" if rollback else "")
    assert world.put_back == (["节点-2", "web-1"] if rollback else [])
    if not rollback:
        later = await acancel_run(run.id, rollback=True, tools=world.tools, store=store)
        assert (later.status, later.message) == (PlanStatus.CANCELLED, "enough (by ana); rolled back: two, one")


def held_pool(world: World) -> ExecutionPlan:
    """Return the pool plan; its second node is put back only once `world.may_finish` is set."""
    plan = pool()
    plan.step("two").rollback = Rollback(tool_name="held", parameters={"node": "${{ result.node }}"})
    return plan


@pytest.fixture
def rollbacks(monkeypatch: pytest.MonkeyPatch) -> list[Undo]:
    """Return the rollbacks that this process creates."""
    made = list[Undo]()

    class RecordedRollback(Undo):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(stages, "Rollback", RecordedRollback)
    return made


async def halted(rollbacks: list[Undo]) -> None:
    """Wait until the rollback has noticed the cancellation."""
    while not rollbacks[-1].halt.is_set:
        await asyncio.sleep(0.01)


async def test_cancelling_a_rollback_finishes_the_running_call_and_reports_the_rest(
    any_store: PlanStore, world: World, rollbacks: list[Undo]
) -> None:
    running = asyncio.create_task(arun_plan(held_pool(world), tools=world.tools, store=any_store, offline=True))
    await world.waiting.wait()
    shown = (await any_store.runs())[0]
    assert (shown.status, shown.reason) == (PlanStatus.EXECUTING, RunReason.STEP_FAILED)
    await acancel_run(shown.id, reason="enough (by ana)", store=any_store)
    await halted(rollbacks)
    world.may_finish.set()
    run = await running
    assert (run.status, run.reason, world.put_back) == (PlanStatus.PARTIAL, RunReason.STEP_FAILED, ["节点-2"])
    assert run.message == ("`last` failed: ValueError: nothing answers; rolled back: two; not rolled back: one (enough (by ana))")


async def test_a_plain_cancel_stops_a_requested_rollback_in_progress(store: PlanStore, world: World, rollbacks: list[Undo]) -> None:
    plan = held_pool(world)
    plan.step("last").tool_name = "wait"
    running = asyncio.create_task(arun_plan(plan, tools=world.tools, store=store, offline=True))
    await world.waiting.wait()
    world.waiting.clear()
    held = (await store.runs())[0]
    await acancel_run(held.id, reason="undo it (by ana)", rollback=True, store=store)
    await world.waiting.wait()  # the rollback of `two` has begun
    await acancel_run(held.id, reason="leave it (by bo)", store=store)
    await halted(rollbacks)
    world.may_finish.set()
    run = await running
    assert (run.status, run.reason, world.put_back) == (PlanStatus.CANCELLED, RunReason.CANCELLED, ["节点-2"])
    assert run.message == "undo it (by ana); rolled back: two; not rolled back: one (leave it (by bo))"
    assert [entry.message for entry in await store.audit(run.id) if entry.kind == "cancel_requested"] == [
        "undo it (by ana)", "leave it (by bo)",
    ]  # fmt: skip
    assert (await store.verify(run.id)).ok


async def test_a_plain_cancel_withdraws_a_requested_rollback_before_it_starts(any_store: PlanStore, world: World) -> None:
    plan = pool("held")
    plan.step("last").parameters = {"node": "last"}
    running = asyncio.create_task(arun_plan(plan, tools=world.tools, store=any_store, offline=True))
    await world.waiting.wait()
    run_id = (await any_store.runs())[0].id
    await any_store.ledger.request_cancel(run_id, "undo it (by ana)", rollback=True)
    assert await any_store.ledger.is_rollback_requested(run_id) is True
    await any_store.ledger.request_cancel(run_id, "leave it (by bo)")
    assert await any_store.ledger.is_rollback_requested(run_id) is False
    run = await running
    assert (run.status, world.put_back, undone(run)) == (PlanStatus.CANCELLED, [], {"one": False, "two": False, "last": False})
    assert "; rolled back: nothing; not rolled back: two (leave it (by bo)), one (`two` must be rolled back first)" in (run.message or "")
    later = await acancel_run(run.id, rollback=True, tools=world.tools, store=any_store)
    assert (world.put_back, undone(later)["one"]) == (["节点-2", "web-1"], True)


@pytest.mark.parametrize("asked", [False, True])
async def test_a_cancellation_in_prefect_finishes_the_running_rollback_call_and_starts_no_other(
    asked: bool, prefect_server: Server, store: PlanStore, world: World, rollbacks: list[Undo]
) -> None:
    plan = held_pool(world)
    plan.step("last").tool_name = "wait" if asked else "verify"
    running = asyncio.create_task(arun_plan(plan, tools=world.tools, store=store))
    await world.waiting.wait()
    run_id = (await store.runs())[0].id
    if asked:
        world.waiting.clear()
        await acancel_run(run_id, reason="undo it (by ana)", rollback=True, store=store)
        await world.waiting.wait()
    flow_run_id = UUID((await store.run(run_id)).flow_run_id or "")
    async with get_client() as client:
        await client.set_flow_run_state(flow_run_id, Cancelling(message="leave it"), force=True)
    await halted(rollbacks)
    world.may_finish.set()
    run = await running
    assert (world.put_back, run.status) == (["节点-2"], PlanStatus.CANCELLED if asked else PlanStatus.PARTIAL)
    assert (run.message or "").endswith("; rolled back: two; not rolled back: one (leave it)")
