"""What a run's status is, derived from how its steps ended and from what stopped it."""

from plan_adapter.execution.cancellation import Stop
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.record import Outcome, PlanRun, RunReason


def conclude(run: PlanRun, stop: Stop) -> None:
    """Write the final status, reason and message of `run`, all of whose steps have ended."""
    completed = any(step.status is StepStatus.COMPLETED for step in run.steps)
    failed = [step for step in run.steps if step.status is StepStatus.FAILED]
    unknown = [step for step in run.steps if step.outcome is Outcome.UNKNOWN]
    broken = PlanStatus.PARTIAL if completed else PlanStatus.FAILED
    doubt = f"whether {', '.join(f'`{step.id}`' for step in unknown)} was done is unknown"
    stopped = f"{stop.message}; {doubt}" if unknown else stop.message
    was_cut_short = stop.is_set and (failed or any(step.status is StepStatus.SKIPPED and step.reason == stop.message for step in run.steps))
    if was_cut_short and stop.kind == "cancelled":
        run.status, run.reason, run.message = PlanStatus.CANCELLED, RunReason.CANCELLED, stopped
    elif was_cut_short:
        run.status, run.reason, run.message = broken, RunReason.TIMED_OUT, stopped
    elif unknown:
        run.status, run.reason, run.message = broken, RunReason.UNKNOWN, doubt
    elif failed:
        run.status, run.reason, run.message = broken, RunReason.STEP_FAILED, f"`{failed[0].id}` failed: {failed[0].error}"
    else:
        run.status, run.reason, run.message = PlanStatus.COMPLETED, None, None
