"""How attempts, steps and runs end, as Prefect's final states: the type that Prefect schedules by, the name and message that people see."""

from collections import Counter

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from plan_adapter.errors import RunFailedError
from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.plan import PlanStatus, StepStatus
from plan_adapter.readable import one_line
from plan_adapter.record import Outcome, PlanRun, RunReason, StepRun

MAX_MESSAGE_CHARACTERS = 2000
MAX_NOTE_CHARACTERS = 500


def state_of_call(end: AttemptEnd) -> State:
    """Return the final state of the task run of a call that ended with `end`."""
    message = _cut(end.error)
    match end.outcome:
        case "succeeded":
            return Completed()
        case "failed":
            return Failed(message=message)
        case "unknown":
            return Failed(name="Unknown", message=message)
        case "cancelled":
            return Cancelled(message=message)
        case "timed_out":
            return Failed(name="TimedOut", message=message)


def state_of_step(step: StepRun) -> State:
    """Return the final state of the task run of a step that ended without a call."""
    if step.status is StepStatus.SKIPPED:
        return Cancelled(name="Skipped", message=_cut(step.reason))
    if step.outcome is Outcome.UNKNOWN:
        return Failed(name="Unknown", message=_cut(step.error))
    if step.status is StepStatus.FAILED:
        return Failed(message=_cut(step.error or step.reason))
    if step.carried:
        return Completed(name="Carried", message="Its result comes from an earlier start of this run.")
    return Completed(message="There was nothing to do: no items.")


def state_of_run(run: PlanRun) -> State:
    """Return the final state of the flow run of `run`.

    In this process the state holds `run`, or RunFailedError, which `await flow()` raises; neither leaves it.
    """
    message = _cut(": ".join(part for part in (_counts(run), run.message, _note(run)) if part))
    if run.status is PlanStatus.COMPLETED:
        return Completed(message=message, data=run)
    error = RunFailedError(run)
    if run.status is PlanStatus.CANCELLED:
        return Cancelled(name=_name(run, RunReason.CANCELLED, "Cancelled"), message=message, data=error)
    fallback = "Partial" if run.status is PlanStatus.PARTIAL else "Failed"
    return Failed(name=_name(run, RunReason.STEP_FAILED, fallback), message=message, data=error)


def _name(run: PlanRun, plain: RunReason, fallback: str) -> str:
    """Return the reason as a state's name (`TimedOut`), or `fallback` where the reason is the plain one of its status."""
    if run.reason is None or run.reason is plain:
        return fallback
    return "".join(word.capitalize() for word in run.reason.split("_"))


def _note(run: PlanRun) -> str | None:
    """Return the words of whoever rejected the run."""
    return one_line(run.rejection_note)[:MAX_NOTE_CHARACTERS] if run.reason is RunReason.REJECTED and run.rejection_note else None


def _counts(run: PlanRun) -> str:
    counts = Counter(step.status for step in run.steps)
    others = (f", {counts[status]} {status}" for status in (StepStatus.FAILED, StepStatus.SKIPPED) if counts[status])
    return f"{counts[StepStatus.COMPLETED]} of {len(run.steps)} steps completed{''.join(others)}"


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_MESSAGE_CHARACTERS else text[: MAX_MESSAGE_CHARACTERS - 1] + "…"
