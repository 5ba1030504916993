"""The gate of a run that goes on: opened for the tools as they are now, asked at, or left open where nobody is there to be asked."""

from plan_adapter.approval import approved_plan
from plan_adapter.plan import PlanStatus
from plan_adapter.record import PlanRun
from plan_adapter.runs.approving import is_answered, not_approved, open_detached
from plan_adapter.runs.occasion import Occasion
from plan_adapter.runs.retooling import refuse_other_tools, take_tools
from plan_adapter.store.store import PlanStore
from plan_adapter.validation import BoundPlan


async def askable(bound: BoundPlan, run: PlanRun, store: PlanStore, occasion: Occasion, *, record_pending: bool) -> tuple[PlanRun, bool]:
    """Return `run` as one that can be asked about, with the tools as they are now, and whether it waits because nobody is there.

    Its gate is open then, unless somebody who was asked wants it changed. Raises NotApprovedError, and changes nothing, where nobody is
    there and that is not to be recorded, and for an approval of other content.
    """
    if occasion.approval is not None and occasion.approval.approval_digest != bound.approval_digest:
        approved_plan(bound, occasion.approval, now=await store.now())  # raises what is wrong with it
    is_waiting = not await is_answered(bound, store, occasion, run=run)
    if is_waiting and not record_pending:
        await refuse_other_tools(bound, run, store, then=f"give an approver or an approval of that, or `plan resume {run.id}` asks")
        raise await not_approved(bound, store, occasion.settings, run=run)
    if bound.approval_digest != run.approval_digest:
        run = await take_tools(bound, run, store, by=occasion.requested_by)
    if is_waiting and not await _is_asked_about(run, store):
        await open_detached(bound, run, store, occasion.settings)
    return run, is_waiting


async def _is_asked_about(run: PlanRun, store: PlanStore) -> bool:
    """Return whether what `run` has now is asked about, or was and is wanted otherwise."""
    if run.status is not PlanStatus.PENDING_APPROVAL:
        return False
    if any(gate.step_id is None for gate in await store.gates(run_id=run.id)):
        return True
    answers = [row for row in await store.approvals(run.id) if row.step_id is None and row.approval_digest == run.approval_digest]
    return bool(answers) and answers[-1].decision == "request_changes"
