"""Derives a run's status from how its steps ended and from what stopped it."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from plan_adapter.execution.cancellation import Stop
from plan_adapter.execution.ports import GateRefusal
from plan_adapter.model.plan import ExecutionPlan
from plan_adapter.model.readable import listed
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.model.status import Outcome, PlanStatus, RunReason, StepStatus

NOT_APPROVED = "not_approved"
"""The reason of a failed step if some of its items were called and others were not approved."""

FAILURES = (RunReason.STEP_FAILED, RunReason.EXHAUSTED)
"""The reasons of a run that ended because a step failed."""


def rolls_back(run: PlanRun, plan: ExecutionPlan) -> bool:
    """Return whether `run` is rolled back automatically because a failed step or the total timeout ended it.

    Also true if an outcome is unknown. Then nothing is undone, and the status message says so.
    """
    if run.reason in (RunReason.TIMED_OUT, RunReason.UNKNOWN):
        return True
    policies = {step.id: plan.on_error_of(step) for step in plan.steps}
    ended = [step for step in run.steps if step.status is StepStatus.FAILED and step.reason != NOT_APPROVED]
    return run.reason in FAILURES and any(policies.get(step.id) == "stop" for step in ended)  # a group or a sub-plan stands for its steps


def ended_status(reason: RunReason | None, *, completed: bool) -> PlanStatus:
    """Return the status of a run that ended for `reason` without completing. `completed`: at least one of its steps completed."""
    if reason in (RunReason.CANCELLED, RunReason.REJECTED, RunReason.EXPIRED):
        return PlanStatus.CANCELLED
    return PlanStatus.PARTIAL if completed else PlanStatus.FAILED


class Ending(NamedTuple):
    """How a run ends."""

    status: PlanStatus
    reason: RunReason | None
    message: str | None


def with_finally_steps(ending: Ending, finally_steps: Sequence[StepRun], why_stopped: str = "") -> Ending:
    """Return how a run ends: `ending`, changed by how its `finally` steps, `finally_steps`, ended.

    `why_stopped` says why some of them could not start.
    """
    unknown = [step for step in finally_steps if step.outcome is Outcome.UNKNOWN]
    failed = [step for step in finally_steps if step.status is StepStatus.FAILED]
    if not unknown and not failed and not why_stopped:
        return ending
    cause = _unknown_message(unknown) if unknown else _failure_message(failed) if failed else why_stopped
    message = f"{ending.message}; {cause}" if ending.message else cause
    reason = ending.reason
    if reason is None or reason in FAILURES:
        reason = RunReason.UNKNOWN if unknown else RunReason.STEP_FAILED if failed else reason or RunReason.TIMED_OUT
    return Ending(PlanStatus.PARTIAL if ending.status is PlanStatus.COMPLETED else ending.status, reason, message)


def ending_of(steps: Sequence[StepRun], stop: Stop, refusal: GateRefusal | None = None, *, left: Collection[str] = ()) -> Ending:
    """Return how a run ends whose `steps`, without the `finally` steps, have all ended.

    `refusal` comes from a step gate; a failed step takes precedence over it. `left` are the steps that nobody requested this time.
    """
    completed = any(part.status is StepStatus.COMPLETED for step in steps for part in (step, *step.items))
    ended = [step for step in steps if step.status is StepStatus.FAILED]
    failed = [step for step in ended if refusal is None or step.reason != NOT_APPROVED]
    unknown = [step for step in steps if step.outcome is Outcome.UNKNOWN]
    broken = PlanStatus.PARTIAL if completed else PlanStatus.FAILED
    stopped = f"{stop.message}; {_unknown_message(unknown)}" if unknown else stop.message
    was_cut_short = stop.is_set and (ended or stop.kept_from_starting)
    if was_cut_short and stop.kind == "cancelled":
        return Ending(PlanStatus.CANCELLED, RunReason.CANCELLED, stopped)
    if was_cut_short:
        return Ending(broken, RunReason.TIMED_OUT, stopped)
    if unknown:
        return Ending(broken, RunReason.UNKNOWN, _unknown_message(unknown))
    if failed:
        is_exhausted = all(step.reason == RunReason.EXHAUSTED for step in failed)
        return Ending(broken, RunReason.EXHAUSTED if is_exhausted else RunReason.STEP_FAILED, _failure_message(failed))
    if refusal is not None:
        return Ending(PlanStatus.CANCELLED, refusal.reason, refusal.message)
    if missing := [step.id for step in steps if step.id in left and step.status is StepStatus.SKIPPED]:
        return Ending(broken, None, f"{_listed_ids(missing)} were not requested this time; resuming the run runs the rest")
    return Ending(PlanStatus.COMPLETED, None, None)


def _unknown_message(steps: Sequence[StepRun]) -> str:
    return f"the outcome of {', '.join(f'`{step.id}`' for step in steps)} is unknown"


def _failure_message(failed: Sequence[StepRun]) -> str:
    groups = {step.id for step in failed}
    first, *others = [step for step in failed if step.group not in groups]  # a failed group or sub-plan names its failed steps
    return f"`{first.id}` failed: {first.error}" + (f"; and so did {_listed_ids([step.id for step in others])}" if others else "")


def _listed_ids(step_ids: Sequence[str]) -> str:
    return listed([f"`{step_id}`" for step_id in step_ids], 5)
