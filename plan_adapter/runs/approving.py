"""The approval of one run: found, asked for, checked and used up."""

import asyncio
from dataclasses import replace

from plan_adapter.approval import ApprovedPlan, approved_plan, requires_approval, without_approval
from plan_adapter.errors import NotApprovedError
from plan_adapter.plan import PlanStatus
from plan_adapter.preview import preview_plan, preview_text
from plan_adapter.readable import duration
from plan_adapter.record import Approval, ApprovalRequest, PlanRun, RunReason
from plan_adapter.runs.occasion import Occasion
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan


async def is_answered(bound: BoundPlan, store: PlanStore, occasion: Occasion) -> bool:
    """Whether nobody needs to be asked, or there is an answer, or somebody who can be asked."""
    if not requires_approval(bound.validated.plan, allow_unapproved=occasion.settings.allow_unapproved):
        return True
    if occasion.approval is not None or occasion.approver is not None:
        return True
    return await store.find_approval(bound.approval_digest) is not None


def not_approved(bound: BoundPlan) -> NotApprovedError:
    """Return the error that names what needs an approval and the ways to give it."""
    return NotApprovedError(
        f"`{bound.validated.plan.name}` requires an approval of {bound.approval_digest[:12]}…: give `approval=approve(plan, …)` "
        "or an approver, or let the plan say `options: {require_approval: false}`"
    )


async def approve_run(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion) -> ApprovedPlan | None:
    """Return the plan as approved for `run`, or None where it was rejected or nobody answered in time, which is then recorded."""
    now = await store.now()
    used = next((row for row in await store.approvals(run.id) if row.decision == "approve"), None)
    if used is not None:
        return approved_plan(bound, replace(used, expires_at=None), now=now)
    answer = await _answer(bound, run, store, occasion)
    if answer is None:
        limit = duration(bound.validated.plan.options.approval_timeout_ms)
        await _end_unapproved(run, store, RunReason.EXPIRED, f"nobody answered within {limit}")
        return None
    if answer.decision == "reject" and answer.approval_digest == bound.approval_digest:
        run.rejection_note = answer.note
        await store.add_approval(replace(answer, run_id=run.id))
        await _end_unapproved(run, store, RunReason.REJECTED, f"rejected by {answer.by}")
        return None
    approved = approved_plan(bound, answer, now=now)
    await store.use_approval(answer, run_id=run.id)
    run.status, run.approved_at, run.approved_by = PlanStatus.APPROVED, answer.at, answer.by
    return approved


async def _end_unapproved(run: PlanRun, store: PlanStore, reason: RunReason, message: str) -> None:
    run.status, run.reason, run.message = PlanStatus.CANCELLED, reason, message
    run.completed_at = await store.now()
    await store.update_run(run)


async def _answer(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion) -> Approval | None:
    """Return the answer that there is, or that the approver gives; None where it takes longer than the plan allows."""
    plan = bound.validated.plan
    if occasion.approval is not None:
        return occasion.approval
    if not requires_approval(plan, allow_unapproved=occasion.settings.allow_unapproved):
        return without_approval(bound, now=await store.now())
    if (waiting := await store.find_approval(bound.approval_digest)) is not None:
        return waiting
    if occasion.approver is None:
        raise not_approved(bound)
    shown = preview_plan(bound.validated, inputs=bound.inputs, approval_digest=bound.approval_digest, requires_approval=True)
    request = ApprovalRequest(bound.approval_digest, plan.name, plan.description, preview_text(shown), run_id=run.id)
    limit_ms = plan.options.approval_timeout_ms
    try:
        return await asyncio.wait_for(occasion.approver.ask(request), limit_ms / 1000 if limit_ms else None)
    except TimeoutError:
        return None
