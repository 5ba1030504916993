"""Derives a run's status from how its steps ended and from what stopped it."""

from collections.abc import Collection, Sequence

from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.ports import GateRefusal
from plan_adapter.plan import ExecutionPlan, PlanStatus, StepStatus
from plan_adapter.readable import listed
from plan_adapter.record import Outcome, PlanRun, RunReason, StepRun

NOT_APPROVED = "not_approved"
"""The reason of a failed step if some of its items were called and others were not approved."""


def rolls_back(run: PlanRun, plan: ExecutionPlan) -> bool:
    """Return whether `run` is rolled back automatically: a failed step or the total timeout ended it.

    Also true if an unknown outcome hides the answer. Nothing is undone then, and the status message says so.
    """
    if run.reason in (RunReason.TIMED_OUT, RunReason.UNKNOWN):
        return True
    policies = {step.id: step.on_error or plan.options.on_error for step in plan.steps}
    ended = [step for step in run.steps if step.status is StepStatus.FAILED and step.reason != NOT_APPROVED]
    return run.reason is RunReason.STEP_FAILED and any(policies[step.id] == "stop" for step in ended)


def ended_status(reason: RunReason | None, *, completed: bool) -> PlanStatus:
    """Return the status of a run that ended for `reason` without completing. `completed`: at least one of its steps completed."""
    if reason in (RunReason.CANCELLED, RunReason.REJECTED, RunReason.EXPIRED):
        return PlanStatus.CANCELLED
    return PlanStatus.PARTIAL if completed else PlanStatus.FAILED


def conclude(run: PlanRun, stop: Stop, refusal: GateRefusal | None = None, *, left: Collection[str] = ()) -> None:
    """Set the final status, reason and message of `run`, all of whose steps have ended.

    `refusal` comes from a step gate; a failed step takes precedence over it. `left` are the steps that nobody requested this time.
    """
    completed = any(step.status is StepStatus.COMPLETED for step in run.steps)
    ended = [step for step in run.steps if step.status is StepStatus.FAILED]
    failed = [step for step in ended if refusal is None or step.reason != NOT_APPROVED]
    unknown = [step for step in run.steps if step.outcome is Outcome.UNKNOWN]
    broken = PlanStatus.PARTIAL if completed else PlanStatus.FAILED
    unknown_outcome = f"whether {', '.join(f'`{step.id}`' for step in unknown)} was done is unknown"
    stopped = f"{stop.message}; {unknown_outcome}" if unknown else stop.message
    was_cut_short = stop.is_set and (ended or any(step.status is StepStatus.SKIPPED and step.reason == stop.message for step in run.steps))
    if was_cut_short and stop.kind == "cancelled":
        run.transition(PlanStatus.CANCELLED, reason=RunReason.CANCELLED, message=stopped)
    elif was_cut_short:
        run.transition(broken, reason=RunReason.TIMED_OUT, message=stopped)
    elif unknown:
        run.transition(broken, reason=RunReason.UNKNOWN, message=unknown_outcome)
    elif failed:
        run.transition(broken, reason=RunReason.STEP_FAILED, message=_failure(failed))
    elif refusal is not None:
        run.transition(PlanStatus.CANCELLED, reason=refusal.reason, message=refusal.message)
    elif missing := [step.id for step in run.steps if step.id in left and step.status is StepStatus.SKIPPED]:
        names = _named(missing)
        run.transition(broken, message=f"{names} were not requested this time; resuming the run runs the rest")
    else:
        run.transition(PlanStatus.COMPLETED)


def _failure(failed: Sequence[StepRun]) -> str:
    first, others = failed[0], [step.id for step in failed[1:]]
    return f"`{first.id}` failed: {first.error}" + (f"; and so did {_named(others)}" if others else "")


def _named(step_ids: Sequence[str]) -> str:
    return listed([f"`{step_id}`" for step_id in step_ids], 5)
