"""Tests of rollback over plan show --versions: approved steps are rolled back as approved, and no unapproved call is made."""

from typing import Any

import pytest

from plan_adapter import ExecutionPlan, PlanRun
from plan_adapter.errors import NotApprovedError
from plan_adapter.model.options import ApprovalPolicy
from plan_adapter.model.plan import Rollback
from plan_adapter.model.status import RunReason
from plan_adapter.runs import acancel_run, arevise_run
from plan_adapter.runs.plan_approval import end_overdue
from plan_adapter.runs.start import execute_plan
from plan_adapter.store import PlanStatus
from tests.gates.test_changed_tools import Shop, shop, stopped
from tests.gates.world import FixedApprover, World

__all__ = ["shop"]

ROLLED_BACK = ["build 商店", "guard 商店-1"]


def plan_with_rollback(shop: Shop, **given: Any) -> ExecutionPlan:
    """Return a plan that builds, with `guard` as rollback, then ships."""
    plan = shop.plan(**given)
    plan.step("build").rollback = Rollback(tool_name="guard", parameters={"name": "${{ result }}"})
    plan.options.continue_on_error = True
    return plan


def plan_with_extra_step(shop: Shop, **given: Any) -> ExecutionPlan:
    """Return the plan with rollback and one more step."""
    plan = plan_with_rollback(shop, **given)
    plan.add_step("ship", "Ship again", {"name": "again"}, id="again", depends_on=["ship"])
    return plan


async def roll_back(world: World, run: PlanRun, shop: Shop, *, by: str | None = None, **tools: Any) -> PlanRun:
    return await acancel_run(run.id, rollback=True, tools=shop.tools(**tools), store=world.store, offline=True, by=by)


@pytest.mark.parametrize("end", ["rejected", "expired", "unanswered"])
async def test_rollback_after_an_unapproved_version_uses_the_approved_version(end: str, world: World, shop: Shop) -> None:
    run = await stopped(world, shop, plan_with_rollback(shop))
    new = plan_with_extra_step(shop, timeout_ms=20 if end == "expired" else 0)
    ended = await arevise_run(run.id, new, tools=shop.tools(), by="bo", store=world.store)
    if end == "rejected":
        ended = await world.resume(run.id, tools=shop.tools(), approver=FixedApprover("reject"))
    while end == "expired" and ended.reason is None:
        ended = await end_overdue(ended, world.store)
    assert ended.reason == (None if end == "unanswered" else end)
    later = await roll_back(world, run, shop, by="li")
    assert shop.called == ROLLED_BACK
    assert (later.status, later.reason) == (PlanStatus.CANCELLED, RunReason("cancelled" if end == "unanswered" else end))
    assert (later.message or "").endswith("rolled back: build")
    assert (later.digest, later.approval_digest) == (run.digest, run.approval_digest)
    assert [(step.id, step.rolled_back) for step in later.steps] == [("build", True), ("ship", False)]
    versions = await world.store.revisions.of_run(run.id)
    assert [(version.by, version.note) for version in versions] == [
        ("bo", ""), ("li", "restored approved version 1 to roll back its steps"),
    ]  # fmt: skip
    assert (await world.store.verify(run.id)).ok
    assert (await roll_back(world, run, shop)).message == later.message
    assert shop.called == ROLLED_BACK


async def test_rollback_after_refused_tools_needs_the_approved_tools_or_an_unchanged_call(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, plan_with_rollback(shop))
    await world.resume(run.id, tools=shop.tools(effect="write", guard="read"), approver=FixedApprover("reject"))
    with pytest.raises(
        NotApprovedError,
        match=r"have changed since it was approved: `guard` \(effect\); it can be rolled back only with the approved tools",
    ):
        await roll_back(world, run, shop, effect="write", guard="read")
    assert shop.called == ["build 商店"]
    later = await roll_back(world, run, shop, effect="write", force=True)  # rollback does not call `ship`
    assert (later.message or "").endswith("rolled back: build")
    assert shop.called == ROLLED_BACK
    assert (await world.store.verify(run.id)).ok


async def test_rollback_uses_the_last_approved_version(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, plan_with_rollback(shop))
    shop.is_broken = True
    second = plan_with_extra_step(shop)
    await arevise_run(run.id, second, tools=shop.tools(), by="bo", store=world.store)
    assert (await world.resume(run.id, tools=shop.tools(), approver=FixedApprover())).status is PlanStatus.PARTIAL
    third = plan_with_extra_step(shop)
    third.step("again").parameters = {"name": "never"}
    await arevise_run(run.id, third, tools=shop.tools(), by="bo", store=world.store)
    await world.resume(run.id, tools=shop.tools(), approver=FixedApprover("reject"))
    later = await roll_back(world, run, shop)
    assert (shop.called, later.approval_digest) == (ROLLED_BACK, world.bound(second, tools=shop.tools()).approval_digest)


async def test_an_unapproved_version_does_not_authorize_a_rollback(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, plan_with_rollback(shop, policy=ApprovalPolicy(operators=["runner", "li"])))
    await arevise_run(run.id, plan_with_extra_step(shop), tools=shop.tools(), by="li", store=world.store)
    with pytest.raises(NotApprovedError, match="eve may not roll back runs of"):
        await roll_back(world, run, shop, by="eve")
    assert (await world.store.run(run.id)).status is PlanStatus.PENDING_APPROVAL
    await roll_back(world, run, shop, by="li")
    assert shop.called == ROLLED_BACK


async def test_a_run_that_was_never_approved_is_not_rolled_back(world: World, shop: Shop) -> None:
    bound, run_request = world.bound(plan_with_rollback(shop), tools=shop.tools()), world.run_request()
    run = await execute_plan(bound, run_request=run_request, store=world.store, offline=True, record_pending=True)
    assert (await roll_back(world, run, shop)).status is PlanStatus.CANCELLED
    assert shop.called == []


async def test_a_run_whose_process_died_before_rollback_only_rolls_back(world: World, shop: Shop) -> None:
    run = await stopped(world, shop, plan_with_rollback(shop))
    await world.resume(run.id, tools=shop.tools(effect="write"), approver=FixedApprover("reject"))
    (version,) = await world.store.revisions.of_run(run.id)
    rejected = await world.store.revisions.restore(
        run.id, version, world.bound(plan_with_rollback(shop), tools=shop.tools()).validated, by="li"
    )
    assert (rejected.status, rejected.reason, rejected.approval_digest) == (PlanStatus.CANCELLED, "rejected", run.approval_digest)
    assert (await world.store.verify(run.id)).ok
    rejected.status, rejected.completed_at = PlanStatus.EXECUTING, None
    await world.store.ledger.claim(rejected, keeps_ends=True)
    await world.store.ledger.release(run.id)
    assert (await world.store.run(run.id)).reason is RunReason.INTERRUPTED
    later = await world.resume(run.id, tools=shop.tools(), approver=FixedApprover())
    assert (later.status, later.reason, shop.called) == (PlanStatus.CANCELLED, RunReason.REJECTED, ROLLED_BACK)
