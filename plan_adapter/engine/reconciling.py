"""Reconciling one flow run: check whether Prefect agrees with the store about a run, and correct Prefect if not."""

from collections.abc import Awaitable, Callable
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Running

from plan_adapter.engine.outgoing import state_message
from plan_adapter.engine.states import INTERRUPTED, state_of_run, state_of_step
from plan_adapter.errors import NoServerError
from plan_adapter.record import PlanRun
from plan_adapter.status import PlanStatus, RunReason, StepStatus

_ENDED_MESSAGE = "the run has ended"
_OPEN_STATES = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING)

COMPARED_CHARACTERS = 1000
"""How much of a run's message is compared with its flow run's, which may be truncated."""


async def reconcile_flow_run(run: PlanRun, *, hint: str, is_unchanged: Callable[[], Awaitable[bool]]) -> str | None:
    """Make Prefect show the actual state of `run`. Return the state name it showed before, or None if it was right or unknown there.

    A run that has ended is shown with its end, and a cancelled one with the reason. A run whose process is gone is shown as Crashed, named
    Interrupted, with `hint`. A run that is executing but that Prefect shows as ended, other than by a cancellation, is shown as Running.

    `is_unchanged` is awaited after Prefect was read, because the run may end in between. Nothing is changed unless it returns True.
    Raises NoServerError.
    """
    if run.flow_run_id is None:
        return None
    try:
        async with get_client() as client:
            shown = (await client.read_flow_run(UUID(run.flow_run_id))).state
            wanted = _wanted_state(run, hint)
            if shown is None or wanted is None or (_matches(shown, wanted) and _shows_message(shown, run)) or not await is_unchanged():
                return None
            await client.set_flow_run_state(UUID(run.flow_run_id), wanted, force=True)
            if run.completed_at is not None:
                await _end_open_runs(client, UUID(run.flow_run_id), run)
            return shown.name
    except ObjectNotFound:
        return None
    except httpx.HTTPError as error:
        raise NoServerError(f"Prefect cannot report the state of run {run.id}: {type(error).__name__}: {error}") from error


async def _end_open_runs(client: PrefectClient, flow_run_id: UUID, run: PlanRun) -> None:
    """End the gates and steps of `run` that its killed process left open."""
    this_run, is_open = {"id": {"any_": [flow_run_id]}}, {"state": {"type": {"any_": _OPEN_STATES}}}
    gates = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run_id]}, **is_open})
    for gate in await client.read_flow_runs(flow_run_filter=gates):
        await client.set_flow_run_state(gate.id, Cancelled(message=_ENDED_MESSAGE), force=True)
    steps = {step.id: step for step in run.steps}
    calls = TaskRunFilter.model_validate(is_open)
    for call in await client.read_task_runs(flow_run_filter=FlowRunFilter.model_validate(this_run), task_run_filter=calls):
        step = steps.get(call.task_key)
        failed_or_skipped = step is not None and step.status in (StepStatus.FAILED, StepStatus.SKIPPED)
        state = state_of_step(step) if step is not None and failed_or_skipped else Cancelled(message=_ENDED_MESSAGE)
        await client.set_task_run_state(call.id, state, force=True)


def _wanted_state(run: PlanRun, hint: str) -> State | None:
    if run.completed_at is not None:
        state = state_of_run(run)
        state.data = None  # the data must never leave this process
        return state
    if run.status is PlanStatus.EXECUTING and run.reason is RunReason.INTERRUPTED:
        return Crashed(name=INTERRUPTED, message=state_message(hint))
    return Running() if run.status is PlanStatus.EXECUTING else None


def _matches(shown: State, wanted: State) -> bool:
    if wanted.name == INTERRUPTED:  # a flow run that is scheduled to resume is left alone
        return shown.name == INTERRUPTED or shown.is_scheduled() or shown.is_pending()
    if wanted.is_running():  # the executing process must handle a cancellation
        return not shown.is_final() or shown.is_cancelled()
    return shown.type == wanted.type


def _shows_message(shown: State, run: PlanRun) -> bool:
    """Return whether the state shows the message of a cancelled run. A worker may replace it with its own."""
    is_over = run.completed_at is not None and run.reason is RunReason.CANCELLED
    return not is_over or state_message(run.message or "")[:COMPARED_CHARACTERS] in (shown.message or "")
