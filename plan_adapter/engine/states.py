"""Maps the ends of attempts, steps and runs to Prefect states: the type that Prefect schedules by, and the name and message people see."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Crashed, Failed, Paused

from plan_adapter.engine.outgoing import MAX_MESSAGE_CHARACTERS, MAX_NOTE_CHARACTERS, state_message
from plan_adapter.execution.ports import AttemptEnd
from plan_adapter.model.errors import PlanAdapterError, RunFailedError, StoreError, StoreSettingsError
from plan_adapter.model.language import tr
from plan_adapter.model.readable import cut, one_line
from plan_adapter.model.record import PlanRun, StepRun
from plan_adapter.model.status import Outcome, PlanStatus, RunOutcome, RunReason, StepStatus
from plan_adapter.model.triggers import UnusedEvent

WAITING = "Waiting"
"""The state name of a flow run that waits for an approval while no process executes it."""
WAITING_SECONDS = 10 * 365 * 24 * 3600
"""How long Prefect lets such a flow run wait. The run's gates have their own deadlines."""
_MORE_CHARACTERS = 30


@dataclass(slots=True)
class FlowEnd:
    """What the function of a flow run ends with, besides the run."""

    paused: State[Any] | None = None  # in which it waits after its process has ended
    report_url: str | None = None


_flow_end: ContextVar[FlowEnd] = ContextVar("plan_adapter_flow_end")


def flow_end() -> FlowEnd:
    """Return the end that is noted for the current flow run. Outside of one, nothing reads it."""
    return _flow_end.get(FlowEnd())


@contextmanager
def keep_flow_end() -> Generator[FlowEnd]:
    """Yield what the current flow run will end with, which is filled in while the block runs."""
    token = _flow_end.set(FlowEnd())
    try:
        yield _flow_end.get()
    finally:
        _flow_end.reset(token)


def state_of_call(end: AttemptEnd) -> State:
    """Return the final state of the task run of a call that ended with `end`."""
    message = _message(end.error)
    match end.outcome:
        case "succeeded":
            return Completed()
        case "failed":
            return Failed(message=message)
        case "unknown":
            return Failed(name=RunOutcome.UNKNOWN_OUTCOME.value, message=message)
        case "cancelled":
            return Cancelled(message=message)
        case "timed_out":
            return Failed(name=RunOutcome.TIMED_OUT.value, message=message)


def state_of_step(step: StepRun) -> State:
    """Return the final state of the task run of a step that ended without a call."""
    if step.status is StepStatus.SKIPPED:
        return Cancelled(name="Skipped", message=_message(step.reason))
    if step.outcome is Outcome.UNKNOWN:
        return Failed(name=RunOutcome.UNKNOWN_OUTCOME.value, message=_message(step.error))
    if step.status is StepStatus.FAILED:
        return Failed(message=_message(step.error or step.reason))
    if step.carried:
        return Completed(name="Carried", message=state_message(tr("Its result comes from an earlier start of this run.")))
    return Completed(message=_message(step.reason or tr("There was nothing to do: no items.")))


def state_of_carried(steps: Sequence[StepRun]) -> State:
    """Return the final state of the one task run that represents all of `steps`, which succeeded in earlier starts."""
    text = tr("The results of {count} steps come from earlier starts of this run; `plan show` lists them.", count=len(steps)) + " "
    names = list[str]()
    for step in steps:
        if len(text) + sum(map(len, names)) + 2 * len(names) + len(step.id) > MAX_MESSAGE_CHARACTERS - _MORE_CHARACTERS:
            names.append(f"and {len(steps) - len(names)} more")
            break
        names.append(step.id)
    return Completed(name="Carried", message=state_message(text + ", ".join(names)))


def state_of_run(run: PlanRun, *, report_url: str | None = None) -> State:
    """Return the final state of the flow run of `run`, or Paused if the run was left waiting for an approval.

    `report_url` is named by the message, unless the run completed.

    Inside this process the state holds `run`, or the RunFailedError that `await flow()` raises. Neither leaves the process.
    """
    if run.status is PlanStatus.PENDING_APPROVAL:
        return unattended_state(run.id)
    message = _message(": ".join(part for part in (run.summary().text, run.message, _rejection_note(run)) if part))
    if run.status is PlanStatus.COMPLETED:
        return Completed(message=message, data=run)
    if report_url is not None:
        message = tr("{message}; report: {url}", message=cut(message or "", MAX_MESSAGE_CHARACTERS - len(report_url) - 10), url=report_url)
    error = RunFailedError(run)
    state = Cancelled if run.status is PlanStatus.CANCELLED else Failed
    return state(name=None if run.outcome is None else run.outcome.value, message=message, data=error)


def unattended_state(run_id: str) -> State:
    """Return the state of the flow run of a run that waits for an approval while no process executes it."""
    message = tr("waiting for an approval; no process is running. {command} says what to type", command=f"`plan show {run_id}`")
    return Paused(name=WAITING, message=state_message(message), timeout_seconds=WAITING_SECONDS)


def state_of_error(error: PlanAdapterError) -> State:
    """Return the final state of a flow run that `error` ended: Crashed if the store was lost, which fails no run, otherwise Failed."""
    if isinstance(error, StoreError) and not isinstance(error, StoreSettingsError):
        return Crashed(name=RunOutcome.INTERRUPTED.value, message=state_message(str(error)), data=error)
    return Failed(message=state_message(str(error)), data=error)


def state_of_unused_event(event: UnusedEvent) -> State:
    """Return the final state of a flow run whose event started no run."""
    return Completed(name=event.name, message=state_message(event.message))


def _rejection_note(run: PlanRun) -> str | None:
    """Return the note of the person who rejected the run."""
    return one_line(run.rejection_note)[:MAX_NOTE_CHARACTERS] if run.reason is RunReason.REJECTED and run.rejection_note else None


def _message(text: str | None) -> str | None:
    return None if text is None else state_message(text)
