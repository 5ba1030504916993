"""Reconciling one flow run: check whether Prefect agrees with the store about a run, and correct Prefect if not."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed, Running

from plan_adapter.engine.connection import current_server, describe_server_error
from plan_adapter.engine.gate_forms import SERVER_ERRORS, FormLostError, GatePause, notice_text, set_paused
from plan_adapter.engine.outgoing import emit_gate_event, state_message
from plan_adapter.engine.states import WAITING, state_of_run, state_of_step, unattended_state
from plan_adapter.gates.gate import escalation_text, request_of
from plan_adapter.model.approvals import Gate
from plan_adapter.model.errors import NoServerError
from plan_adapter.model.record import PlanRun
from plan_adapter.model.status import PlanStatus, RunOutcome, RunReason, StepStatus

_ENDED_MESSAGE = "the run has ended"
_OPEN_STATES = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING)

COMPARED_CHARACTERS = 1000
"""How much of a run's message is compared with its flow run's, which may be truncated."""


async def reconcile_flow_run(
    run: PlanRun, *, hint: str, is_unchanged: Callable[[], Awaitable[bool]], settled: timedelta = timedelta(0)
) -> str | None:
    """Make Prefect show the actual state of `run`. Return the state name it showed before, or None if it was right or unknown there.

    A run that has ended is shown with its end, and a cancelled one with the reason. A run whose process is gone has a `hint`: it is shown
    as Crashed, named Interrupted, with the hint. A run that is executing but that Prefect shows as ended, other than by a cancellation, is
    shown as Running.

    `is_unchanged` is awaited after Prefect was read, because the run may end in between. Nothing is changed unless it returns True, nor if
    the state is younger than `settled`. Raises NoServerError.
    """
    if run.flow_run_id is None:
        return None
    try:
        async with get_client() as client:
            shown = (await client.read_flow_run(UUID(run.flow_run_id))).state
            wanted = _wanted_state(run, hint)
            if shown is None or wanted is None or (_matches(shown, wanted) and _shows_message(shown, run)):
                return None
            if datetime.now(UTC) - shown.timestamp < settled or not await is_unchanged():
                return None
            await client.set_flow_run_state(UUID(run.flow_run_id), wanted, force=True)
            if run.completed_at is not None:
                await _end_open_runs(client, UUID(run.flow_run_id), run)
            return shown.name
    except ObjectNotFound:
        return None
    except httpx.HTTPError as error:
        raise NoServerError(f"Prefect cannot report the state of run {run.id}: {type(error).__name__}: {error}") from error


async def announce_escalation(gate: Gate, run: PlanRun) -> bool:
    """Send the event that `gate` has escalated, unless Prefect has it already. Return whether it was sent. Raises NoServerError."""
    wanted = {"filter": {"event": {"name": ["plan.gate.escalated"]}, "resource": {"id": [f"plan.gate.{gate.id}"]}}, "limit": 1}
    try:
        async with get_client() as client:
            found = (await client.request("POST", "/events/filter", json=wanted)).json()["events"]
    except httpx.HTTPError as error:
        raise NoServerError(f"the Prefect server cannot be used: {describe_server_error(error)}") from error
    if found:
        return False
    page = current_server().run_url(gate.flow_run_id or str(run.flow_run_id))
    emit_gate_event("escalated", gate, run, link=page, message=escalation_text(gate.gate_policy))
    return True


async def pause_again(
    flow_run_id: str,
    run: PlanRun,
    gate: Gate | None,
    *,
    refused: str | None,
    settled: timedelta,
    is_unchanged: Callable[[], Awaitable[bool]],
    record_form: Callable[[str | None], Awaitable[None]],
) -> str | None:
    """Pause a flow run again on which `run` waits without a process. Return the state name it showed, or None if it was left alone.

    It is left alone if it is paused or cancelled, if a worker may take it up, and if its state is younger than `settled`, because a process
    may be about to open its gate. It gets the form of `gate`, with the reason why the last answer was refused; without a gate, a notice.
    `record_form` records the key of the form, or None if the flow run has none. Raises NoServerError.
    """
    try:
        async with get_client() as client:
            flow_run = await client.read_flow_run(UUID(flow_run_id))
            shown = flow_run.state
            if shown is None or not _has_nobody(flow_run, run) or datetime.now(UTC) - shown.timestamp < settled or not await is_unchanged():
                return None
            if not shown.is_running():  # Prefect pauses only what is running
                await client.set_flow_run_state(flow_run.id, Running(), force=True)
            pause, state = GatePause(flow_run.id, client, run=flow_run), unattended_state(run.id)
            if gate is not None:
                await record_form(pause.keyset)  # before the form exists, so that an answer in it is always found
            if await set_paused(pause, state) is None:
                await record_form(None)
                return None
            if gate is None:
                await pause.write_notice(notice_text(state))
            else:
                try:
                    await pause.write_form(request_of(gate), refused=refused)
                except FormLostError:
                    await record_form(None)
                    raise
            return shown.name
    except ObjectNotFound:
        return None
    except (*SERVER_ERRORS, FormLostError) as error:
        raise NoServerError(f"Prefect cannot pause the flow run of run {run.id}: {type(error).__name__}: {error}") from error


def _has_nobody(flow_run: FlowRun, run: PlanRun) -> bool:
    """Return whether the state of `flow_run` says that it runs, will run or has ended, and no worker takes it up."""
    state = flow_run.state
    if state is None or state.is_paused() or state.is_cancelled() or state.is_cancelling():
        return False
    if state.is_scheduled() or state.is_pending():
        return flow_run.deployment_id is None
    return state.is_running() or str(flow_run.id) == run.flow_run_id  # the page of a step's gate may end before its run


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
    if hint:
        return Crashed(name=RunOutcome.INTERRUPTED.value, message=state_message(hint))
    return Running() if run.status is PlanStatus.EXECUTING else None


def _matches(shown: State, wanted: State) -> bool:
    if wanted.name == RunOutcome.INTERRUPTED:  # a flow run that is scheduled to resume is left alone
        return shown.name == RunOutcome.INTERRUPTED or shown.is_scheduled() or shown.is_pending()
    if wanted.is_running():  # the executing process must handle a cancellation
        return (not shown.is_final() and shown.name != WAITING) or shown.is_cancelled()
    return shown.type == wanted.type


def _shows_message(shown: State, run: PlanRun) -> bool:
    """Return whether the state shows the message of a cancelled run. A worker may replace it with its own."""
    is_over = run.completed_at is not None and run.reason is RunReason.CANCELLED
    return not is_over or state_message(run.message or "")[:COMPARED_CHARACTERS] in (shown.message or "")
