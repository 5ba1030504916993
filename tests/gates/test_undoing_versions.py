"""What was done under an approved version can be undone after a later one was refused, and no call is made that nobody approved."""

from typing import Any

import pytest

from plan_adapter import ExecutionPlan, NotApprovedError, PlanRun, PlanStatus, acancel_run, arevise_run
from plan_adapter.options import ApprovalPolicy
from plan_adapter.plan import Rollback
from plan_adapter.runs.approval import end_overdue
from plan_adapter.runs.start import execute_plan
from plan_adapter.status import RunReason
from tests.gates.test_changed_tools import Shop, shop, stopped
from tests.gates.world import Says, World

__all__ = ["shop"]

UNDONE = ["build 商店", "guard 商店-1"]


def undoable(shop: Shop, **given: Any) -> ExecutionPlan:
    """Build, which `guard` undoes, then ship."""
    plan = shop.plan(**given)
    plan.step("build").rollback = Rollback(tool_name="guard", parameters={"name": "${{ result }}"})
    plan.options.continue_on_error = True
    return plan


def shipping_twice(shop: Shop, **given: Any) -> ExecutionPlan:
    """The same, and a step that was not there."""
    plan = undoable(shop, **given)
    plan.add_step("ship", "Ship again", {"name": "again"}, id="again", depends_on=["ship"])
    return plan


async def undo(world: World, run: PlanRun, shop: Shop, *, by: str | None = None, **tools: Any) -> PlanRun:
    return await acancel_run(run.id, rollback=True, tools=shop.tools(**tools), store=world.store, offline=True, by=by)


@pytest.mark.parametrize("end", ["rejected", "expired", "unanswered"])
async def test_after_a_version_that_nobody_approved_what_was_done_is_undone_as_it_was_approved(end: str, world: World, shop: Shop) -> None:
    run = await stopped(world, shop, undoable(shop))
    new = shipping_twice(shop, timeout_ms=20 if end == "expired" else 0)
    ended = await arevise_run(run.id, new, tools=shop.tools(), by="bo", store=world.store)
    if end == "rejected":
        ended = await world.resume(run.id, tools=shop.tools(), approver=Says("reject"))
    while end == "expired" and ended.reason is None:
        ended = await end_overdue(ended, world.store)
    assert ended.reason == (None if end == "unanswered" else end)
    later = await undo(world, run, shop, by="li")
    assert shop.called == UNDONE
    assert (later.status, later.reason) == (PlanStatus.CANCELLED, RunReason("cancelled" if end == "unanswered" else end))
    assert (later.message or "").endswith("rolled back: build")
    assert (later.digest, later.approval_digest) == (run.digest, run.approval_digest)
    assert [(step.id, step.rolled_back) for step in later.steps] == [("build", True), ("ship", False)]
    versions = await world.store.revisions.of_run(run.id)
    assert [(version.by, version.note) for version in versions] == [
        ("bo", ""), ("li", "what is undone was done under version 1, which was approved"),
    ]  # fmt: skip
    assert (await world.store.verify(run.id)).ok
    assert (await undo(world, run, shop)).message == later.message
    assert shop.called == UNDONE


async def test_after_refused_tools_what_was_approved_is_undone_with_those_or_where_the_call_is_the_same(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, undoable(shop))
    await world.resume(run.id, tools=shop.tools(effect="write", guard="read"), approver=Says("reject"))
    with pytest.raises(
        NotApprovedError,
        match=r"have changed since it was approved: `guard` \(effect\); it can be rolled back only with the approved tools",
    ):
        await undo(world, run, shop, effect="write", guard="read")
    assert shop.called == ["build 商店"]
    later = await undo(world, run, shop, effect="write", force=True)  # `ship` is no call that is made
    assert (later.message or "").endswith("rolled back: build")
    assert shop.called == UNDONE
    assert (await world.store.verify(run.id)).ok


async def test_of_several_versions_the_last_one_that_was_approved_counts(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, undoable(shop))
    shop.is_broken = True
    second = shipping_twice(shop)
    await arevise_run(run.id, second, tools=shop.tools(), by="bo", store=world.store)
    assert (await world.resume(run.id, tools=shop.tools(), approver=Says())).status is PlanStatus.PARTIAL
    third = shipping_twice(shop)
    third.step("again").parameters = {"name": "never"}
    await arevise_run(run.id, third, tools=shop.tools(), by="bo", store=world.store)
    await world.resume(run.id, tools=shop.tools(), approver=Says("reject"))
    later = await undo(world, run, shop)
    assert (shop.called, later.approval_digest) == (UNDONE, world.bound(second, tools=shop.tools()).approval_digest)


async def test_a_version_that_nobody_approved_gives_nobody_the_right_to_undo(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, undoable(shop, policy=ApprovalPolicy(operators=["runner", "li"])))
    await arevise_run(run.id, shipping_twice(shop), tools=shop.tools(), by="li", store=world.store)
    with pytest.raises(NotApprovedError, match="eve may not roll back runs of"):
        await undo(world, run, shop, by="eve")
    assert (await world.store.run(run.id)).status is PlanStatus.PENDING_APPROVAL
    await undo(world, run, shop, by="li")
    assert shop.called == UNDONE


async def test_of_a_run_that_nobody_ever_approved_nothing_is_undone(world: World, shop: Shop) -> None:
    bound, run_request = world.bound(undoable(shop), tools=shop.tools()), world.run_request()
    run = await execute_plan(bound, run_request=run_request, store=world.store, offline=True, record_pending=True)
    assert (await undo(world, run, shop)).status is PlanStatus.CANCELLED
    assert shop.called == []


async def test_a_process_that_died_before_rolling_back_leaves_a_run_that_only_rolls_back(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, undoable(shop))
    await world.resume(run.id, tools=shop.tools(effect="write"), approver=Says("reject"))
    (version,) = await world.store.revisions.of_run(run.id)
    rejected = await world.store.revisions.put_back(run.id, version, world.bound(undoable(shop), tools=shop.tools()).validated, by="li")
    assert (rejected.status, rejected.reason, rejected.approval_digest) == (PlanStatus.CANCELLED, "rejected", run.approval_digest)
    assert (await world.store.verify(run.id)).ok
    rejected.status, rejected.completed_at = PlanStatus.EXECUTING, None
    await world.store.ledger.claim(rejected, keeps_ends=True)
    await world.store.ledger.release(run.id)
    assert (await world.store.run(run.id)).reason is RunReason.INTERRUPTED
    later = await world.resume(run.id, tools=shop.tools(), approver=Says())
    assert (later.status, later.reason, shop.called) == (PlanStatus.CANCELLED, RunReason.REJECTED, UNDONE)
