"""Who may do what with a recorded run. Whoever may not is told who may, and the audit of the run is told of them."""

from plan_adapter.approval import Operation, refusal, refuse_operation, rules_of
from plan_adapter.errors import NotApprovedError
from plan_adapter.plan import ExecutionPlan
from plan_adapter.record import Decision, PlanRun
from plan_adapter.runs.occasion import Occasion
from plan_adapter.settings import Settings
from plan_adapter.store.store import PlanStore


async def require_operator(
    plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings, *, by: str, operation: Operation
) -> None:
    """Return if `by` may do this with `run`; raises NotApprovedError, which the audit then tells of."""
    try:
        refuse_operation(plan, settings, by=by, operation=operation)
    except NotApprovedError as error:
        await store.note_refusal(run.id, str(error), by=by)
        raise


async def require_approver(
    plan: ExecutionPlan, run: PlanRun, store: PlanStore, settings: Settings, *, by: str, known_by: str, decision: Decision, doing: str
) -> None:
    """Return if `by` may answer at the gates of `plan`; raises NotApprovedError, which the audit then tells of.

    `doing` begins the sentence that says why not.
    """
    rules = rules_of(plan, settings, requested_by=run.requested_by or "")
    if (why := refusal(rules, by=by, known_by=known_by, decision=decision)) is not None:
        await store.note_refusal(run.id, f"{doing}: {why}", by=by, known_by=known_by)
        raise NotApprovedError(f"{doing}: {why}")


async def refuse_going_on(run: PlanRun, plan: ExecutionPlan, store: PlanStore, occasion: Occasion, *, skips: bool = False) -> None:
    """Return if who resumes `run` may: as an operator, and to leave a step out (it `skips` one) as who may answer at its gates.

    Without a step it is not what was approved. Raises NotApprovedError, which the audit then tells of.
    """
    await require_operator(plan, run, store, occasion.settings, by=occasion.operator, operation="resume")
    if skips:
        who = {"by": occasion.requested_by, "known_by": "os_user"}
        doing = "a step may not be left out"
        await require_approver(plan, run, store, occasion.settings, **who, decision="approve", doing=doing)
