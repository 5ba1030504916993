"""Finds the standing approval that covers a run or one of its calls, and uses it up."""

import asyncio
import logging
from dataclasses import replace
from functools import partial

from plan_adapter.execution.ports import GatedCall
from plan_adapter.gates.approval import gate_policy_of, refusal
from plan_adapter.gates.coverage import why_not_covered
from plan_adapter.gates.identity import recorded_identity
from plan_adapter.gates.policy import EffectivePolicy
from plan_adapter.gates.quorum import why_one_is_too_few
from plan_adapter.gates.standing_files import find_standing_file, read_signed_standing, verify_standing
from plan_adapter.model.approvals import Approval, StandingApproval
from plan_adapter.model.errors import InvalidPlanError, NotApprovedError, StoreError
from plan_adapter.model.plan import ExecutionPlan, new_id
from plan_adapter.model.record import PlanRun, RunContext
from plan_adapter.runs.gate_policies import authors_at
from plan_adapter.runs.run_session import RunRequest
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan

log = logging.getLogger(__name__)


async def use_standing_approval(bound: BoundPlan, run: PlanRun, store: PlanStore, run_request: RunRequest) -> Approval | None:
    """Return the approval that a standing approval gives `run`, counted and recorded, or None if none covers it.

    Only runs started by a schedule can be covered. A signed file beside the plan document is stored at its first use, and then treated like
    any other standing approval.
    """
    if run_request.schedule is None:
        return None
    policy = await store.policy.effective(run_request.settings)
    file_id = await _store_signed_file(store, run, run_request, policy)
    now = await store.now()
    for standing in await store.standing.find():
        reason = why_not_covered(standing, bound, schedule=run_request.schedule, now=now)
        reason = reason or await _refusal(standing, bound.validated.plan, store, policy)
        if standing.source is not None and standing.id != file_id:
            reason = reason or f"{standing.source} next to this plan no longer contains it"
        if reason is None:
            try:
                await _verify(standing, policy)
                return await store.standing.use(standing.id, run_id=run.id, approval_digest=bound.approval_digest)
            except NotApprovedError as error:  # wrong signature, or just used up or revoked
                reason = str(error)
        log.info("the standing approval %s does not cover run %s: %s", standing.id, run.id, reason)
    return None


async def _refusal(
    standing: StandingApproval, plan: ExecutionPlan, store: PlanStore, policy: EffectivePolicy, *, step_id: str | None = None
) -> str | None:
    """Return why the person who gave `standing` is not allowed to approve this plan, or this step, or None."""
    authors = await authors_at(plan, store, policy, step_id=step_id)
    gate_policy = gate_policy_of(plan, policy, requested_by="", authors=authors, step_id=step_id)  # started by a schedule
    reason = refusal(gate_policy, recorded_identity(standing), decision="approve")
    return reason or why_one_is_too_few(gate_policy, "a standing approval")


async def _verify(standing: StandingApproval, policy: EffectivePolicy) -> None:
    await asyncio.to_thread(partial(verify_standing, standing, policy=policy))


async def approve_call_by_standing(
    run_approval: Approval, call: GatedCall, run: PlanRun, plan: ExecutionPlan, store: PlanStore, run_request: RunRequest
) -> Approval | None:
    """Return the approval of a call if the run's standing approval covers the step, or None."""
    if run_approval.standing_id is None:
        return None
    kept = await store.standing.find(include_ended=True)  # including one that this run has just used up
    standing = next((known for known in kept if known.id == run_approval.standing_id and known.revoked_at is None), None)
    if standing is None or call.step.id not in standing.steps or (standing.until is not None and standing.until <= await store.now()):
        return None
    policy = await store.policy.effective(run_request.settings)
    if await _refusal(standing, plan, store, policy, step_id=call.step.id) is not None:  # stale under the current policy: ask a person
        return None
    await _verify(standing, policy)
    given = replace(
        run_approval,
        id=new_id(),
        approval_digest=call.approval_digest,
        at=await store.now(),
        run_id=run.id,
        step_id=call.step.id,
        item=call.item,
        used_at=None,
    )
    await store.add_approval(given, identity=recorded_identity(standing))
    return given


async def _store_signed_file(store: PlanStore, run: PlanRun, run_request: RunRequest, policy: EffectivePolicy) -> str | None:
    """Store the signed standing approval file beside the plan document, and return its id, or None. The store counts its uses."""
    path = find_standing_file(run_request.plan_file) if run_request.plan_file is not None else None
    if path is None:
        return None
    try:
        standing = await asyncio.to_thread(partial(read_signed_standing, path, policy=policy))
    except (NotApprovedError, InvalidPlanError) as error:
        log.warning("%s gives no standing approval: %s", path, error)
        return None
    if standing.id not in {known.id for known in await store.standing.find(include_ended=True)}:
        try:
            await store.standing.add(standing, context=RunContext(tenant_id=run.tenant_id))
        except StoreError:  # another run may have stored it just now
            if standing.id not in {known.id for known in await store.standing.find(include_ended=True)}:
                raise
    return standing.id
