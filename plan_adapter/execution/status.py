"""What a run's status is, derived from how its steps ended and from what stopped it."""

from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.ports import GateRefusal
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.record import Outcome, PlanRun, RunReason

NOT_APPROVED = "not_approved"
"""Why a step failed some of whose items were called and others not approved."""


def conclude(run: PlanRun, stop: Stop, refusal: GateRefusal | None = None) -> None:
    """Write the final status, reason and message of `run`, all of whose steps have ended.

    `refusal` is that of a step's gate; a step that failed besides weighs more.
    """
    completed = any(step.status is StepStatus.COMPLETED for step in run.steps)
    ended = [step for step in run.steps if step.status is StepStatus.FAILED]
    failed = [step for step in ended if refusal is None or step.reason != NOT_APPROVED]
    unknown = [step for step in run.steps if step.outcome is Outcome.UNKNOWN]
    broken = PlanStatus.PARTIAL if completed else PlanStatus.FAILED
    doubt = f"whether {', '.join(f'`{step.id}`' for step in unknown)} was done is unknown"
    stopped = f"{stop.message}; {doubt}" if unknown else stop.message
    was_cut_short = stop.is_set and (ended or any(step.status is StepStatus.SKIPPED and step.reason == stop.message for step in run.steps))
    if was_cut_short and stop.kind == "cancelled":
        run.status, run.reason, run.message = PlanStatus.CANCELLED, RunReason.CANCELLED, stopped
    elif was_cut_short:
        run.status, run.reason, run.message = broken, RunReason.TIMED_OUT, stopped
    elif unknown:
        run.status, run.reason, run.message = broken, RunReason.UNKNOWN, doubt
    elif failed:
        run.status, run.reason, run.message = broken, RunReason.STEP_FAILED, f"`{failed[0].id}` failed: {failed[0].error}"
    elif refusal is not None:
        run.status, run.reason, run.message = PlanStatus.CANCELLED, refusal.reason, refusal.message
    else:
        run.status, run.reason, run.message = PlanStatus.COMPLETED, None, None
